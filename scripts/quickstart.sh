#!/usr/bin/env bash
# From nothing to a trained model: LeNet on the embedded digits, with a master, two workers, psnode's default scheme (two bits for
# each coordinate of gradients and weights), and a concurrent evaluator. Needs only Python 3.11 or newer, and no root.
#
#   scripts/quickstart.sh [DIR [FLAG...]]   DIR: the directory of the run (default: a new directory in runs/)
#                                           FLAG: passed to psnode train
#   PSNODE_VENV, PSNODE_PYTHON              the virtual environment (.venv), and the Python with which it is made
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/venv.sh

venv=${PSNODE_VENV:-.venv}
directory=${1:-runs/quickstart-$(date +%Y%m%d-%H%M%S)}
[[ $# -eq 0 ]] || shift
prepare_venv "$venv" train,mpi
PATH=$(cd "$venv/bin" && pwd):$PATH
export PATH

# Open MPI refuses to run as root, or with more ranks than cores, unless told otherwise
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
began=$SECONDS

psnode evaluate --train-dir "$directory" --patience 60 &
evaluator=$!
trap 'kill "$evaluator" 2>/dev/null || true' EXIT

mpirun -n 3 --map-by :OVERSUBSCRIBE --bind-to none \
    psnode train --network LeNet --dataset digits --epochs 10 --train-dir "$directory" "$@"
wait "$evaluator"
trap - EXIT

python - "$directory" "$((SECONDS - began))" <<'PYTHON'
import json
import sys
from pathlib import Path

directory, seconds = Path(sys.argv[1]), sys.argv[2]
summary = json.loads((directory / "summary.json").read_text())
last = json.loads((directory / "evaluations.jsonl").read_text().splitlines()[-1])
sent = summary["uplink_bytes"] + summary["downlink_bytes"]
dense = sent * summary["compression_ratio"]
up = summary["uplink_bytes"]
print(f"""
test accuracy   {100 * last["top1"]:.2f} % on {last["examples"]} digits never trained on, after {summary["steps"]} steps
sent            {sent / 1e6:.1f} MB, where float32 both ways takes {dense / 1e6:.1f} MB; gradients alone {up / 1e6:.1f} MB instead of {dense / 2e6:.1f} MB
time            {seconds} s
written to      {directory.resolve()}
                metrics.jsonl (every step), evaluations.jsonl, summary.json, checkpoints/, tensorboard/""")
PYTHON
