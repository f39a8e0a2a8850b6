#!/usr/bin/env bash
# Runs on the master: waits until all checkpoints are uploaded to the bucket, and prints the last line of the record.
#
#   kept.sh DIR SECONDS   SECONDS: the longest wait
set -euo pipefail
cd "$1"
[[ ! -f s3.lock ]] || flock -w "$2" s3.lock true || echo "not everything is in the bucket after $2 s" >&2
[[ ! -f s3.log ]] || tail -n 1 s3.log
