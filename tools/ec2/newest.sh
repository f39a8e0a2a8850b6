#!/usr/bin/env bash
# Runs on the master: asks a job that runs to write a checkpoint and end, waits for it, and prints where the newest checkpoint of the
# home directory and of DIR lies: the folder of its run, then the names of its files and folders there; nothing if there is none.
#
#   newest.sh DIR SECONDS   as long as it waits
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
# DIR may be on a larger disk of the node; what a server shares does not end with the node
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
