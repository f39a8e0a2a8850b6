#!/usr/bin/env bash
# Compare the bytes that codecs write with the stored bytes. The tested psnode is the one that PYTHON imports, and not the one of
# this checkout: the tests are copied to the new folder FOLDER/checks. Further arguments go to pytest.
#
#   scripts/golden_bytes.sh PYTHON FOLDER [ARGUMENT...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ $# -ge 2 ]] || { echo "$0: error: give PYTHON and FOLDER" >&2 && exit 2; }
python=$1 checks=$2/checks
shift 2
mkdir "$checks"
cp -R tests "$checks"
printf '[pytest]\npythonpath = .\naddopts = --import-mode=importlib -p no:cacheprovider\nmarkers =\n    serial: one after another\n    sweep: many values\n' \
    >"$checks/pytest.ini"
cd "$checks"
mapfile -t files < <(grep -l "def test_golden_bytes" tests/codecs/test_*.py)
exec timeout 900 "$python" -m pytest -q -k golden_bytes "$@" "${files[@]}"
