#!/usr/bin/env bash
# Runs on a node: prints a tar of one file or of all that a folder holds.
#
#   give.sh SOURCE
set -euo pipefail
[[ -e $1 ]] || {
    echo "$1 does not exist" >&2
    exit 1
}
folder=$1 name=.
[[ -d $1 ]] || folder=$(dirname -- "$1") name=./$(basename -- "$1")
code=0
# 1: a job was writing there meanwhile
tar -C "$folder" --dereference --hard-dereference --warning=no-file-changed -cf - "$name" || code=$?
[[ $code -le 1 ]] || exit "$code"
