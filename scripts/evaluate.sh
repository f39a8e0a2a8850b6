#!/usr/bin/env bash
# On the master, beside a run or after it: evaluate its checkpoints as they appear. Arguments go to `psnode evaluate`.
#
#   evaluate.sh --train-dir runs/first
set -euo pipefail
PATH=${PSNODE_VENV:-$HOME/psnode/.venv}/bin:$PATH
exec psnode evaluate "$@"
