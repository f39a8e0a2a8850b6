#!/usr/bin/env bash
# Runs on a node: prints the packages installed with psnode, one NAME==VERSION per line; prints nothing without psnode.
#
#   versions.sh VENV
set -euo pipefail
[[ -x $1/bin/psnode ]] || exit 0
"$1/bin/python" -m pip freeze --quiet --disable-pip-version-check </dev/null | grep -iE '^[a-z0-9._-]+==' | grep -vi '^psnode==' || true
