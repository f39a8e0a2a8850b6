#!/usr/bin/env bash
# Runs on the master while a job runs: starts the process that uploads the job's checkpoints to a bucket, and leaves this process
# running.
#
#   start_keeping.sh DIR PYTHON URL
set -euo pipefail
# the lock is held until all is uploaded; an earlier process may still hold it during its last look
exec 9>"$1/s3.lock"
flock -n 9 || true
# shellcheck disable=SC2016 # for the other shell
setsid bash -c 'flock 9 && exec "$@"' keep "$2" "$1/s3_checkpoints.py" keep "$1" "$3" </dev/null >/dev/null 2>&1 &
