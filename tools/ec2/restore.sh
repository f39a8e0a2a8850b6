#!/usr/bin/env bash
# Runs on the master: fetches the newest checkpoint of a run from a bucket, and prints its name.
#
#   restore.sh DIR PYTHON URL RUN
set -euo pipefail
exec "$2" "$1/s3_checkpoints.py" restore "$1" "$3" "$4" </dev/null
