#!/usr/bin/env bash
# Runs on the master: asks a running job to write a checkpoint and end, waits for its end, and finds the newest checkpoint in the
# home directory and in DIR. Prints the folder of its run, and then the files and folders to fetch; prints nothing if there is no
# checkpoint.
#
#   newest.sh DIR SECONDS   SECONDS: the longest wait
set -euo pipefail
cd "$1" 2>/dev/null || exit 0
if [[ -f jobs/last/lock && -f jobs/last/pid && ! -f jobs/last/code ]] && ! flock -sn jobs/last/lock true; then
    touch jobs/last/asked
    kill -TERM "$(cat jobs/last/pid)" 2>/dev/null || true
    flock -sw "$2" jobs/last/lock true || echo "the job did not end within $2 s" >&2
fi
folders=(.)
here=$(pwd -P)
cd
# DIR may be on another disk of the node; a directory shared by a server outlives the node
if [[ $here/ != "$(pwd -P)"/* && $(stat -f -c %T "$here") != nfs* ]]; then
    folders+=("$here")
fi
newest=$(find "${folders[@]}" -xdev -path '*/checkpoints/latest' -type f -printf '%T@ %p\n' 2>/dev/null | sort -rn | sed -n '1s/^[^ ]* //p') || true
[[ -n $newest ]] || exit 0
newest=${newest#./}
folder=${newest%checkpoints/latest}
folder=${folder%/}
step=$(cat "$newest")
[[ $step =~ ^step-[0-9]+$ ]] || exit 0
echo "${folder:-.}"
cd "${folder:-.}"
find . -maxdepth 1 -type f -printf '%P\n'
printf '%s\n' checkpoints/latest "checkpoints/$step"
