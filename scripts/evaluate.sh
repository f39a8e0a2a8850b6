#!/usr/bin/env bash
# On the master, during a run or after it: evaluate the checkpoints of the run as they appear. Arguments go to `psnode evaluate`.
#
#   evaluate.sh --train-dir runs/first
set -euo pipefail
venv=${PSNODE_VENV:-$HOME/psnode/.venv}
[[ -z $(find -L "$venv" "$venv/bin" -maxdepth 0 -perm -o+w ! -perm -o+t 2>/dev/null) ]] || {
    echo "evaluate.sh: error: everybody may write into $venv, whose programs would be executed: chmod o-w it and its bin" >&2
    exit 2
}
PATH=$venv/bin:$PATH
exec psnode evaluate "$@"
