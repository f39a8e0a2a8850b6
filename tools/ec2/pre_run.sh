#!/usr/bin/env bash
# Installs what a node needs: Python 3.11 or newer, psnode in a virtual environment, and an MPI. Safe to repeat.
#
#   pre_run.sh [WHAT]   a wheel, a checkout, or a pip requirement, such as psnode==1.2 or git+https://HOST/psnode.git
#                       [the checkout that this script is in]
#   PSNODE_VENV         the virtual environment [~/psnode/.venv]; if it exists, it is used unchanged
#   PSNODE_MPI          wheel: Open MPI's wheel; system: the MPI on the PATH, or the MPI of EFA's installer [wheel]
#   PSNODE_EXTRAS       further extras of psnode, separated by commas [none]
#   PSNODE_CONSTRAINTS  a constraints file for pip
set -euo pipefail

what=${1:-$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)}
venv=${PSNODE_VENV:-$HOME/psnode/.venv}
mpi=${PSNODE_MPI:-wheel}
[[ $mpi == wheel || $mpi == system ]] || {
    echo "pre_run.sh: error: PSNODE_MPI must be wheel or system, not $mpi" >&2
    exit 2
}

# as_root COMMAND...
as_root() {
    if [[ $(id -u) -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

# install PACKAGE...: with the system's package manager
install() {
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get -qq -o DPkg::Lock::Timeout=300 update </dev/null >&2
    as_root apt-get -qq -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@" </dev/null >&2
}

# is_new PYTHON
is_new() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null </dev/null
}

# requirement WHAT: print WHAT with the extras that psnode needs on this node
requirement() {
    local named='^([A-Za-z0-9._-]+)[[:space:]]*(\[([^]]*)\])?[[:space:]]*([@=<>!~].*)?$'
    if [[ $1 =~ $named ]]; then
        local rest=${BASH_REMATCH[4]}
        [[ $rest != @* ]] || rest=" $rest"
        echo "${BASH_REMATCH[1]}[${BASH_REMATCH[3]:+${BASH_REMATCH[3]},}$extras]$rest"
    else
        echo "psnode[$extras] @ $1"
    fi
}

find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11; do
        if is_new "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
}

mkdir -p "$(dirname "$venv")"
# one process at a time: an interrupted process may still be at work on this node
exec 9>"$venv.lock"
flock 9
if [[ ! -x $venv/bin/python ]]; then
    python=$(find_python)
    if [[ -z $python ]] || ! "$python" -c 'import ensurepip' 2>/dev/null </dev/null; then
        install python3 python3-venv
        python=$(find_python)
    fi
    [[ $python ]] || {
        echo "pre_run.sh: error: this system has no Python 3.11 or newer: take a newer image" >&2
        exit 2
    }
    "$python" -m venv "$venv" </dev/null >&2
fi
if [[ -n $(find -L "$venv" "$venv/bin" -maxdepth 0 -perm -o+w ! -perm -o+t) ]]; then
    echo "pre_run.sh: error: everybody may write into $venv, whose programs would be executed: chmod o-w it and its bin" >&2
    exit 2
fi
is_new "$venv/bin/python" || {
    echo "pre_run.sh: error: the Python of $venv is older than 3.11: name another environment" >&2
    exit 2
}

[[ $what != *git+* ]] || command -v git >/dev/null || install git
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
[[ -z ${PSNODE_CONSTRAINTS:-} ]] || pip+=(-c "$PSNODE_CONSTRAINTS")
more=${PSNODE_EXTRAS:+,$PSNODE_EXTRAS}
extras=train,mpi$more
if [[ $mpi == system ]]; then
    extras=train$more
    for folder in /opt/amazon/openmpi/bin /opt/amazon/openmpi5/bin; do
        [[ ! -d $folder ]] || PATH=$folder:$PATH
    done
    command -v mpicc >/dev/null || install libopenmpi-dev openmpi-bin gcc python3-dev
    "${pip[@]}" --no-binary mpi4py mpi4py </dev/null >&2
fi
case $what in
*://*) "${pip[@]}" "$(requirement "$what")" </dev/null >&2 ;;
*.whl | */* | . | ..)
    what=$(readlink -f "$what")
    # an unchanged wheel needs no installation; in a checkout any file may have changed
    state=none
    [[ ! -f $what ]] || state="$(sha256sum <"$what") $extras"
    if [[ $state == none || $(cat "$venv/.psnode-wheel" 2>/dev/null) != "$state" ]]; then
        # pip considers a package of the same version installed
        if "$venv/bin/python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("psnode") is None)' </dev/null; then
            "${pip[@]}" --force-reinstall --no-deps "$what" </dev/null >&2
        fi
        "${pip[@]}" "${what}[$extras]" </dev/null >&2
        echo "$state" >"$venv/.psnode-wheel"
    fi
    ;;
*) "${pip[@]}" "$(requirement "$what")" </dev/null >&2 ;;
esac
"$venv/bin/psnode" --version </dev/null
