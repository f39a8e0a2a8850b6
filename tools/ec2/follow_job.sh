#!/usr/bin/env bash
# Runs on the master: prints a job's log. With "follow", it continues until the job has ended, and exits with the job's code.
#
#   follow_job.sh DIR JOB LINES follow|once
set -euo pipefail
cd "$1/$2" 2>/dev/null || {
    echo "no job has been started yet: run one" >&2
    exit 2
}
if [[ $4 == once ]]; then
    exec tail -n "$3" log
fi
# runs: true while the job runs, since a running job holds its lock
runs() {
    [[ -f lock && ! -f code ]] && ! flock -sn lock true
}

if runs; then
    tail -n "$3" -f --pid="$(cat pid)" log
else
    tail -n "$3" log
fi
for _ in {1..100}; do
    runs || break
    sleep 0.1
done
[[ ! -f code ]] || exit "$(cat code)"
echo "the job ended without a code: it was killed, or the node was restarted" >&2
exit 1
