"""docs/far-sites.md as written: its WireGuard configurations connect the page's hosts, and no others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "far-sites.md").read_text()
CONFIGURATIONS = dict(re.findall(r"```ini\n# (\w+)\n(.*?)```", PAGE, re.S))

# each host uses its own configuration, host 0 as alpha; KEYS/NAME and KEYS/NAME.pub exist
JOIN = """
set -eu
number=$((RANK + 1)) keys=$1 device=wgp$2-$RANK
name=$(echo alpha beta gamma | cut -d ' ' -f $number)
configuration=$keys/$name.conf
wireguard-go $device 2>/dev/null
wg-quick strip $configuration >$keys/$name.set
wg setconf $device $keys/$name.set
address=$(sed -n 's/^Address = //p' $configuration)
ip address add $address dev $device
ip link set $device mtu $(sed -n 's/^MTU = //p' $configuration) up
exec "$3" -c "$4"
"""
MEET = """
import os, socket
if os.environ["RANK"] == "0":
    with socket.create_server(("10.78.0.1", 6000)) as server:
        server.settimeout(20)
        for _ in range(2):
            link, peer = server.accept()
            print(peer[0], link.recv(20).decode())
else:
    while True:
        link = socket.socket()
        link.settimeout(20)
        try:
            link.connect(("10.78.0.1", 6000))
            break
        except ConnectionRefusedError:
            link.close()
    link.sendall(os.environ["RANK"].encode())
    link.close()
"""


def configurations(folder: Path, keys: dict[str, tuple[str, str]]) -> None:
    """Write the page's configurations with keys filled in; gamma's is beta's with its own address."""
    texts = dict(CONFIGURATIONS)
    texts["gamma"] = texts["beta"].replace("10.78.0.2/24", "10.78.0.3/24").replace("OF-BETA", "OF-GAMMA")
    for name, text in texts.items():
        for whose, (private, public) in keys.items():
            text = text.replace(f"PRIVATE-KEY-OF-{whose.upper()}", private).replace(f"PUBLIC-KEY-OF-{whose.upper()}", public)
        assert "KEY-OF" not in text
        (folder / f"{name}.conf").write_text(text.replace("alpha.example.org", "10.77.0.1"))
        (folder / f"{name}.conf").chmod(0o600)


@pytest.mark.skipif(shutil.which("wg-quick") is None, reason="no wg-quick: install wireguard-tools")
@pytest.mark.skipif(shutil.which("wireguard-go") is None, reason="no wireguard-go, which works without the kernel's module")
def test_the_configurations_of_the_page_make_one_network(netlab: Any, tmp_path: Path) -> None:

    def wg(verb: str, told: str = "") -> str:
        return subprocess.run(["wg", verb], input=told, capture_output=True, text=True, check=True).stdout.strip()

    private = {name: wg("genkey") for name in ("alpha", "beta", "gamma", "delta")}
    configurations(tmp_path, {name: (key, wg("pubkey", key)) for name, key in private.items()})
    mark = str(os.getpid())
    arguments = ["sh", "-c", JOIN, "sh", tmp_path, mark, sys.executable, MEET]
    done = netlab("--hosts", 3, "--rate", "none", "--each", "--", *arguments)
    assert done.code == 0, done
    assert sorted(done.out.splitlines()) == ["10.78.0.2 1", "10.78.0.3 2"]
    for socket in Path("/run/wireguard").glob(f"wgp{mark}-*.sock"):
        socket.unlink()
