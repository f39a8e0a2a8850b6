#!/usr/bin/env bash
# Build the site of README and docs into build/site (or the folder of --site-dir). A broken link or anchor, or a page missing in
# the navigation, is an error.
#
#   scripts/docs.sh             build; build/site/index.html is the first page
#   scripts/docs.sh --serve     serve on http://127.0.0.1:8000, and build anew whenever a page changes
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/venv.sh

venv=${PSNODE_VENV:-.venv}
prepare_venv "$venv" docs
export NO_MKDOCS_2_WARNING=1
if [[ ${1:-} == --serve ]]; then
    exec "$venv/bin/python" -m mkdocs serve --strict "${@:2}"
fi
exec "$venv/bin/python" -m mkdocs build --strict --quiet "$@"
