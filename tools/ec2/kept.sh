#!/usr/bin/env bash
# Runs on the master: waits until nothing has to be brought to the bucket any more, and prints the last line of the record.
#
#   kept.sh DIR SECONDS   as long as it waits
set -euo pipefail
cd "$1"
[[ ! -f s3.lock ]] || flock -w "$2" s3.lock true || echo "not everything is in the bucket after $2 s" >&2
[[ ! -f s3.log ]] || tail -n 1 s3.log
