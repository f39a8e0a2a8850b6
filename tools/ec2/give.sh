#!/usr/bin/env bash
# Runs on a node: prints a tar archive of a file, of a whole folder, or of the named entries of a folder.
#
#   give.sh SOURCE [NAME...]
set -euo pipefail
[[ -e $1 ]] || {
    echo "$1 does not exist" >&2
    exit 1
}
# if a link leads to a folder that contains the link, tar would follow it until the path is too long
loop=$(LC_ALL=C find -L "$1" -type d 2>&1 >/dev/null | sed -n 's/^find: File system loop detected; .\(.*\). is part of .*/\1/p;T;q') || true
[[ -z $loop ]] || {
    echo "$loop is a link back to a folder that it is in, so that a copy has no end: remove it" >&2
    exit 1
}
folder=$1 name=.
[[ -d $1 ]] || folder=$(dirname -- "$1") name=./$(basename -- "$1")
what=("$name")
[[ $# -eq 1 ]] || what=(--no-recursion . --recursion "${@:2}")
code=0
# code 1: a job wrote to a file while tar read it
tar -C "$folder" --dereference --hard-dereference --warning=no-file-changed -cf - "${what[@]}" || code=$?
[[ $code -le 1 ]] || exit "$code"
