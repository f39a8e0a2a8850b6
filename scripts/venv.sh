# Sourced by the other scripts: a virtual environment with psnode in it.
# shellcheck shell=bash

# find_python: print a Python of at least 3.11; $PSNODE_PYTHON wins.
find_python() {
    local candidate
    for candidate in "${PSNODE_PYTHON:-}" python3 python3.11 python3.12 python3.13 python3.14 python; do
        if [[ -n $candidate ]] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "$0: error: no Python 3.11 or newer found: install one, or name it in PSNODE_PYTHON" >&2
    return 2
}

# prepare_venv DIR EXTRAS: make DIR if need be and install this checkout with EXTRAS, unless that was done already.
prepare_venv() {
    local venv=$1 extras=$2 python stamp wanted
    if [[ ! -x $venv/bin/python ]]; then
        python=$(find_python)
        echo "making $venv with $python" >&2
        if ! "$python" -m venv "$venv" >&2; then
            rm -rf -- "$venv"
            echo "$0: error: $python cannot make virtual environments: install its venv module (Debian: python3-venv)" >&2
            return 2
        fi
    fi
    stamp=$venv/.psnode-installed
    wanted="$PWD $extras $(cat setup.cfg pyproject.toml constraints.txt | cksum)"
    if [[ ! -f $stamp || $(<"$stamp") != "$wanted" ]]; then
        echo "installing psnode[$extras] into $venv; the first time this fetches PyTorch" >&2
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt --editable ".[$extras]" >&2
        printf '%s\n' "$wanted" >"$stamp"
    fi
}
