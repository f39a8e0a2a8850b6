# Sourced by the other scripts: a virtual environment with psnode in it.
# shellcheck shell=bash

# find_python: print the first Python found that is 3.11 or newer; if $PSNODE_PYTHON is set, consider only that one.
find_python() {
    local candidate
    for candidate in ${PSNODE_PYTHON:-python3 python3.11 python3.12 python3.13 python3.14 python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "$0: error: no Python 3.11 or newer${PSNODE_PYTHON:+ at $PSNODE_PYTHON}: install one, or name it in PSNODE_PYTHON" >&2
    return 2
}

# checkout_state: print a text that changes when a new installation is needed.
checkout_state() {
    echo "$PWD $(cat setup.cfg pyproject.toml constraints.txt | cksum)"
}

# is_installed DIR EXTRAS: succeed if this checkout is installed in DIR with at least the extras EXTRAS.
is_installed() {
    local stamp=$1/.psnode-installed extra state extras
    [[ -f $stamp ]] || return 1
    { read -r state && read -r extras; } <"$stamp"
    [[ $state == "$(checkout_state)" ]] || return 1
    for extra in ${2//,/ }; do
        [[ ,$extras, == *",$extra,"* ]] || return 1
    done
}

# require_own DIR: refuse an environment whose programs other users may replace.
require_own() {
    if [[ -n $(find -L "$1" "$1/bin" -maxdepth 0 -perm -o+w ! -perm -o+t 2>/dev/null) ]]; then
        echo "$0: error: everybody may write into $1, whose programs would be executed: chmod o-w it and its bin, or make another" >&2
        return 2
    fi
}

# prepare_venv DIR EXTRAS: make DIR if needed, and install this checkout with EXTRAS, unless this has been done before.
prepare_venv() {
    local venv=$1 extras=$2 python
    if [[ ! -x $venv/bin/python ]]; then
        if [[ -e $venv && ! -e $venv/pyvenv.cfg && -n $(ls -A "$venv") ]]; then
            echo "$0: error: $venv is there and is no virtual environment: name another in PSNODE_VENV, or remove it" >&2
            return 2
        fi
        python=$(find_python)
        echo "making $venv with $python" >&2
        if ! "$python" -m venv "$venv" >&2; then
            rm -rf -- "$venv"
            echo "$0: error: $python cannot make virtual environments: install its venv module (Debian: python3-venv)" >&2
            return 2
        fi
    fi
    require_own "$venv" || return
    if ! is_installed "$venv" "$extras"; then
        echo "installing psnode[$extras] into $venv; the first time this fetches PyTorch" >&2
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt --editable ".[$extras]" >&2
        printf '%s\n%s\n' "$(checkout_state)" "$extras" >"$venv/.psnode-installed"
    fi
}
