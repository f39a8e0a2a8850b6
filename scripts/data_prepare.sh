#!/usr/bin/env bash
# Fetch the training and test parts of data sets before any run: on every node, or once into a directory that all nodes share.
#
#   data_prepare.sh [NAME...]   [mnist cifar10 svhn]
#   DATA_DIR                    the target folder, for --data-dir later [data]
set -euo pipefail
venv=${PSNODE_VENV:-$HOME/psnode/.venv}
[[ -z $(find -L "$venv" "$venv/bin" -maxdepth 0 -perm -o+w ! -perm -o+t 2>/dev/null) ]] || {
    echo "data_prepare.sh: error: everybody may write into $venv, whose programs would be executed: chmod o-w it and its bin" >&2
    exit 2
}
PATH=$venv/bin:$PATH
[[ $# -gt 0 ]] || set -- mnist cifar10 svhn
exec python - "${DATA_DIR:-data}" "$@" <<'EOF'
import sys

from psnode.tasks.data import load
from psnode.errors import ConfigurationError

directory, *names = sys.argv[1:]
for name in names:
    try:
        train, test = (load(name, directory, train=train, download=True) for train in (True, False))
    except ConfigurationError as error:
        sys.exit(f"data_prepare.sh: error: {error}")
    print(f"{name}: {len(train)} examples to train with and {len(test)} to test with, in {directory}")
EOF
