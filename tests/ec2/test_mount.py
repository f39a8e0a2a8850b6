"""The shared directory: entered in fstab once, mounted once, and writable only by its user. tmpfs stands in for NFS."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "ec2" / "mount.sh"
# in a new mount namespace, with a private /etc
INSIDE = """
set -e
cp -a /etc etc
mount --bind etc /etc
printf 'UUID=1 / ext4 defaults 0 1\\n10.0.0.8:/ /mnt/old nfs4 ro 0 0\\n' >/etc/fstab
for server in 10.0.0.9 10.0.0.9 fd00::9; do
    PATH=$PWD/bin:$PATH bash "$1" "$server" /export "$PWD/shared"
    echo "mounted: $(findmnt -n -o SOURCE --mountpoint "$PWD/shared")"
done
touch shared/mine
stat -c 'mode: %a' shared
cat /etc/fstab
"""
MOUNT = """#!/bin/sh
awk -v directory="$1" '$2 == directory' /etc/fstab >>"$HERE/mounted"
exec /bin/mount -t tmpfs -o mode=0700 "$(awk -v directory="$1" '$2 == directory { print $1 }' /etc/fstab)" "$1"
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting needs root and unshare")
def test_a_shared_directory_is_mounted_once_and_not_open_to_all(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, text in (("mount", MOUNT), ("mount.nfs4", "#!/bin/sh\n")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    line = ["unshare", "--mount", "bash", "-c", INSIDE, "inside", str(SCRIPT)]
    done = subprocess.run(line, cwd=tmp_path, env={**os.environ, "HERE": str(tmp_path)}, capture_output=True, text=True)
    if done.stdout == "" and done.stderr.startswith(("unshare: ", "mount: ")):
        pytest.skip("this system lets nobody mount")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    # the same server is left mounted; another server replaces it
    assert lines[:3] == ["mounted: 10.0.0.9:/export", "mounted: 10.0.0.9:/export", "mounted: [fd00::9]:/export"]
    assert int(lines[3].removeprefix("mode: "), 8) & 0o022 == 0
    # other lines of the table stay; the directory has one line, that of the last server
    assert lines[4:6] == ["UUID=1 / ext4 defaults 0 1", "10.0.0.8:/ /mnt/old nfs4 ro 0 0"]
    (entered,) = lines[6:]
    assert entered.startswith(f"[fd00::9]:/export {tmp_path}/shared nfs4 nfsvers=4.1,")
    assert entered.endswith("_netdev 0 0")
    mounted = (tmp_path / "mounted").read_text().splitlines()
    assert [line.split()[:3] for line in mounted] == [
        [f"{server}:/export", f"{tmp_path}/shared", "nfs4"] for server in ("10.0.0.9", "[fd00::9]")
    ]
