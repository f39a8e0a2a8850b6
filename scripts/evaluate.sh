#!/usr/bin/env bash
# On the master, beside a run or after it: evaluate its checkpoints as they appear. Arguments go to `psnode evaluate`.
#
#   evaluate.sh --train-dir runs/first
set -euo pipefail
# shellcheck source=scripts/venv.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/venv.sh"
venv=${PSNODE_VENV:-$HOME/psnode/.venv}
require_own "$venv"
PATH=$venv/bin:$PATH
exec psnode evaluate "$@"
