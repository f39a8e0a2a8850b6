#!/usr/bin/env bash
# Runs on a node: unpacks a tar archive from standard input, with a file or the contents of a folder.
#
#   receive.sh TARGET NAME file|folder   If TARGET is empty, ., .. or ends with a slash, the result is TARGET/NAME; the same for a
#                                        file if TARGET is a folder
set -euo pipefail
target=$1 name=$2 kind=$3
case $target in
'' | . | .. | */) target=${target:-.}/$name ;;
*) [[ $kind == folder || ! -d $target ]] || target=$target/$name ;;
esac
unpack=(tar --no-same-owner --no-same-permissions -xf - -C)
if [[ $kind == folder ]]; then
    mkdir -p -- "$target"
    exec "${unpack[@]}" "$target"
fi
beside=$(dirname -- "$target")
mkdir -p -- "$beside"
new=$(mktemp -d -p "$beside" .psnode-XXXXXX)
trap 'rm -rf -- "$new"' EXIT
"${unpack[@]}" "$new"
mv -fT -- "$new/$name" "$target"
