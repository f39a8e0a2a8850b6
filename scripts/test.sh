#!/usr/bin/env bash
# Install what the tests need and run them all: ruff, mypy and shellcheck, then pytest. With arguments, which go to pytest,
# only pytest runs:
#
#   scripts/test.sh
#   scripts/test.sh tests/config/test_train_settings.py -k digest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/venv.sh

venv=${PSNODE_VENV:-.venv}
prepare_venv "$venv" train,mpi,bench,loggers,tune,docs,frameworks,dev
bin=$venv/bin
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

if [[ $# -gt 0 ]]; then
    exec "$bin/python" -m pytest "$@"
fi

failed=0
"$bin/ruff" check . || failed=1
"$bin/ruff" format --check . || failed=1
"$bin/mypy" &
types=$!
# writes pytest's own form of the tests, which each of its processes would make otherwise
env -u PYTHONDONTWRITEBYTECODE "$bin/python" -m pytest --collect-only -q -n 0 >/dev/null &
collection=$!
"$bin/shellcheck" -x scripts/*.sh psnode/bench/contest/*.sh tools/ec2/*.sh .ci/run || failed=1
"$bin/python" -m compileall -q psnode studies tools/ec2 # otherwise every process compiles, if it may not write bytecode
"$bin/python" scripts/compile_kernels.py || failed=1
wait "$types" || failed=1
wait "$collection" || failed=1
# a worker of pytest-xdist that ends early is not replaced: with --dist loadgroup the run would never end
# three processes keep two cores busy, since tests that start jobs wait for most of their time
# which long tests run depends on the committed files, so that another commit has another sample, and the same commit the same
tree=$(git rev-parse --verify 'HEAD^{tree}' 2>/dev/null || echo 0)
sample=$((16#${tree:0:7}))
echo "the sample of long tests and sweeps: --sample $sample"
"$bin/python" -m pytest -n 3 --dist loadgroup --no-loadscope-reorder --max-worker-restart 0 --sample "$sample" || failed=$?
exit "$failed"
