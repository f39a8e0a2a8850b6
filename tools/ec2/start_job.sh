#!/usr/bin/env bash
# Runs on the master: starts a command that continues if the connection ends. Prints the folder of the job.
#
#   start_job.sh DIR BIN HOSTS WHERE COMMAND...   BIN: the folder of psnode; HOSTS: with commas; WHERE: the folder in DIR where the command runs
set -euo pipefail
[[ -x $2/psnode ]] || {
    echo "there is no psnode on this node: run setup" >&2
    exit 2
}
# the MPI of EFA's installer; an MPI in the virtual environment has precedence
for folder in /opt/amazon/openmpi/bin /opt/amazon/openmpi5/bin; do
    [[ ! -d $folder ]] || PATH=$folder:$PATH
done
PATH=$(cd "$2" && pwd):$PATH
cd "$1"
hosts=$3 where=$4
shift 4
mkdir -p jobs
# one start at a time
exec 8>jobs/start.lock
flock 8
# the shell below and tail hold the lock of a running job; a process number alone may belong to another process by now
if [[ -f jobs/last/lock ]] && ! flock -sn jobs/last/lock true; then
    echo "a job runs already (jobs/$(readlink jobs/last)): see it with logs --follow, end it with stop" >&2
    exit 2
fi
tr , '\n' <<<"$hosts" >hosts_address
job=$(date -u +%Y%m%dT%H%M%S)-$$
mkdir -p "jobs/$job"
printf '%q ' "$@" >"jobs/$job/command"
# no tree of ssh connections through the workers, since workers have no key
export PRTE_MCA_plm_ssh_no_tree_spawn=1
exec 9>"jobs/$job/lock"
flock 9
# shellcheck disable=SC2016 # for the other shell
setsid bash -c '
    job=$1
    cd "$2"
    shift 2
    "$@" >"$job/log" 2>&1 9>&- &
    pid=$!
    echo "$pid" >"$job/pid.new" && mv "$job/pid.new" "$job/pid"
    # this keeps the lock until the job ends, even if this shell is killed
    tail -s 0.1 -f --pid="$pid" /dev/null &
    code=0
    wait "$pid" || code=$?
    kill $! 2>/dev/null || true
    wait $! 2>/dev/null || true
    echo "$code" >"$job/code.new" && mv "$job/code.new" "$job/code"
' start_job "$PWD/jobs/$job" "$where" "$@" </dev/null >/dev/null 2>&1 8>&- &
for _ in {1..100}; do
    [[ ! -f jobs/$job/pid ]] || break
    sleep 0.05
done
ln -sfn "$job" jobs/.last
mv -fT jobs/.last jobs/last
echo "jobs/$job"
