#!/usr/bin/env bash
# On the master of a cluster that psnode-ec2 did not make: install psnode on every host of a list. Each host needs a checkout in
# the same directory, and must accept ssh from the master.
#
#   remote_script.sh [HOSTS]   one address per line [hosts_address]
set -euo pipefail
hosts=${1:-hosts_address}
[[ -r $hosts ]] || {
    echo "remote_script.sh: error: $hosts cannot be read: name a file with one address a line, as get_hosts writes it" >&2
    exit 2
}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
settings=()
for name in PSNODE_VENV PSNODE_MPI PSNODE_CONSTRAINTS; do
    [[ -z ${!name:-} ]] || settings+=("$name=${!name}")
done
# through standard input: the URL of an index may contain a token, and all users can read a command line
indexes=
for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL; do
    [[ -z ${!name:-} ]] || indexes+=$(printf 'export %s=%q' "$name" "${!name}")$'\n'
done
failed=0
while read -r host _ <&3; do
    [[ -n $host && $host != \#* ]] || continue
    echo "$host"
    # shellcheck disable=SC2029 # expanded on this machine on purpose
    ssh -o BatchMode=yes "$host" "$(printf '%q ' env "${settings[@]}" bash -s "$here/pre_run.sh")" <<<"$indexes"'exec "$1" </dev/null' || {
        echo "remote_script.sh: error: $host failed" >&2
        failed=1
    }
done 3<"$hosts"
exit "$failed"
