#!/usr/bin/env bash
# Runs on every node: mounts the shared directory, now and after a restart. Safe to repeat.
#
#   mount.sh SERVER EXPORT DIRECTORY
set -euo pipefail
server=$1 export=$2 directory=$3
[[ $server != *:* ]] || server="[$server]"

# as_root COMMAND...
as_root() {
    if [[ $(id -u) -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

if ! command -v mount.nfs4 >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get -qq -o DPkg::Lock::Timeout=300 update </dev/null >&2
    as_root apt-get -qq -y -o DPkg::Lock::Timeout=300 install --no-install-recommends nfs-common </dev/null >&2
fi
as_root mkdir -p "$directory"
line="$server:$export $directory nfs4 nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev 0 0"
if ! grep -qxF "$line" /etc/fstab; then
    awk -v directory="$directory" '$2 != directory' /etc/fstab | as_root tee /etc/fstab.psnode >/dev/null
    echo "$line" | as_root tee -a /etc/fstab.psnode >/dev/null
    as_root chmod 644 /etc/fstab.psnode
    as_root mv /etc/fstab.psnode /etc/fstab
fi
# the server has changed: unmount the old one, which fails while a process uses it
if mountpoint -q "$directory" && [[ $(findmnt -n -o SOURCE --mountpoint "$directory" | tail -n 1) != "$server:$export" ]]; then
    as_root umount "$directory"
fi
mountpoint -q "$directory" || as_root mount "$directory"
# an unused export belongs to root: give it to the user, so that only the user may write to it
if [[ ! -w $directory && -z $(ls -A "$directory") ]]; then
    as_root chown "$(id -u):$(id -g)" "$directory"
    as_root chmod 755 "$directory"
fi
[[ -w $directory ]] || {
    echo "$(id -un) may not write to $directory: change its owner on the server" >&2
    exit 1
}
