#!/usr/bin/env bash
# Runs on a node: unpacks a tar archive of the user's code from standard input into DIR/CODE. Files of an earlier archive that are
# not in the new one are deleted. All other files, such as those that jobs have written, stay.
#
#   receive_code.sh DIR CODE
set -euo pipefail
mkdir -p "$1/jobs"
cd "$1"
exec 8>jobs/start.lock
flock 8
if [[ -f jobs/last/lock ]] && ! flock -sn jobs/last/lock true; then
    echo "a job runs already (jobs/$(readlink jobs/last)), whose code stays as it is: see it with logs --follow, end it with stop" >&2
    exit 2
fi
new=$(mktemp -d .code-XXXXXX)
trap 'rm -rf -- "$new"' EXIT
tar --no-same-owner -xf - -C "$new"
(cd "$new" && LC_ALL=C find . -mindepth 1 ! -type d -print0 | LC_ALL=C sort -z) >"$new.list"
trap 'rm -rf -- "$new" "$new.list"' EXIT
mkdir -p "$2"
if [[ -f $2.list ]]; then
    (cd "$2" && LC_ALL=C comm -z -23 "../$2.list" "../$new.list" | xargs -0 -r rm -f --)
fi
# names that were files and are folders now, or vice versa
(cd "$new" && find . -mindepth 1 -type d -print0) | (cd "$2" && while IFS= read -r -d '' name; do
    [[ -d $name && ! -L $name ]] || rm -f -- "$name"
done)
while IFS= read -r -d '' name; do
    [[ ! -d $2/$name || -L $2/$name ]] || rm -rf -- "${2:?}/$name"
done <"$new.list"
cp -a --remove-destination -- "$new/." "$2/"
mv -f -- "$new.list" "$2.list"
