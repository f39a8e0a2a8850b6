"""Access to nodes, tested without nodes: host keys in consoles, dry runs, incomplete clusters, and packages."""

from __future__ import annotations

import base64
import io
import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnode_ec2.hostkeys import keep_keys, keys_in, pinned
from psnode_ec2.jobs import common_network
from psnode_ec2.preparing import package_of


def public(kind: str, *parts: bytes) -> str:
    """Return a key in the format of RFC 4253: strings, each preceded by its length."""
    blob = b"".join(len(part).to_bytes(4) + part for part in (kind.encode(), *parts))
    return f"{kind} {base64.b64encode(blob).decode()}"


ED25519 = public("ssh-ed25519", bytes(range(32)))
ECDSA = public("ecdsa-sha2-nistp256", b"nistp256", bytes(range(65)))
RSA = public("ssh-rsa", b"\x01\x00\x01", bytes(257))


def console(*keys: str) -> str:
    block = [
        "-----BEGIN SSH HOST KEY KEYS-----",
        *(f"{key} root@ip-172-31-0-1" for key in keys),
        "-----END SSH HOST KEY KEYS-----",
    ]
    return "\r\n".join(["[    0.000000] Linux version 6.8.0", *block, "[   17.2] cloud-init: finished", ""])


def test_the_host_keys_are_those_between_the_marks() -> None:
    assert keys_in(console(ED25519, ECDSA)) == [ED25519, ECDSA]
    assert keys_in(base64.b64encode(console(ED25519).encode()).decode()) == [ED25519]
    # some consoles print the seconds since the start before each line
    assert keys_in(re.sub(r"^", "[   16.901] ", console(ED25519, ECDSA), flags=re.M)) == [ED25519, ECDSA]


def test_a_key_elsewhere_on_the_console_or_a_block_without_end_counts_for_nothing() -> None:
    assert keys_in(f"user said: {ED25519}\n") == []
    assert keys_in(console(ED25519).partition("-----END")[0]) == []
    assert keys_in("") == []


def test_what_is_printed_after_the_start_puts_no_key_in_the_place_of_the_first() -> None:
    assert keys_in(console(ED25519) + console(ECDSA)) == [ED25519]


def test_a_console_that_breaks_a_key_pins_no_half_of_it() -> None:
    text = console(ED25519, RSA)
    middle = text.index("ssh-rsa") + 150
    message = "[   12.345678] random: crng init done\r\n"
    # a kernel message in the middle of a line: the line is reassembled
    assert keys_in(text[:middle] + message + text[middle:]) == [ED25519, RSA]
    # a line that is cut or mixed with other text, at any position, is ignored
    for place in range(text.index("ssh-rsa"), text.index(RSA) + len(RSA)):
        assert set(keys_in(text[:place] + "\r\n" + text[place:])) <= {ED25519, RSA}
        assert ED25519 in keys_in(text[:place] + "?" + text[place:])
    cut = text[:middle] + "\r\n" + text[middle + 40 :]
    assert keys_in(cut) == [ED25519]


def test_a_console_of_any_text_is_read() -> None:
    for text in ("login", "abcde", "\x00" * 100, "=", "-----BEGIN SSH HOST KEY KEYS-----\n" * 3):
        assert keys_in(text) == []
    coloured = console(ED25519).replace("ssh-ed25519", "\x1b[0;32mssh-ed25519").replace(" root@", "\x1b[0m root@")
    assert keys_in(coloured) == [ED25519]


def test_a_line_that_was_cut_while_it_was_written_pins_nothing(tmp_path: Path) -> None:
    """Check that a key whose line was cut is ignored, as after a full disk or a killed command: the key is requested again,
    on a new line.
    """
    path = tmp_path / "known_hosts"
    path.write_text(f"i-1 {ED25519}\ni-2 {ED25519[:40]}")
    assert pinned(path) == {"i-1": [ED25519]}
    keep_keys(path, {"i-2": [RSA], "i-3": [ED25519]})
    assert pinned(path) == {"i-1": [ED25519], "i-2": [RSA], "i-3": [ED25519]}


def test_keys_that_the_latest_output_does_not_reach_are_in_that_of_the_start(ec2: Any, aws: Any, config: Path) -> None:
    def boot(action: str, form: dict[str, str], body: bytes) -> None:
        if action == "RunInstances":
            ids = re.findall(r"<instanceId>(.*?)</instanceId>", body.decode())
            aws.consoles.update(dict.fromkeys(ids, console(ED25519)))
            aws.latest.update(dict.fromkeys(ids, "[ 86400.0] eth0: link is up\r\n"))

    aws.after = boot
    assert ec2("launch", "--yes", "--n-workers", 1).code == 0
    known = config.parent / "state" / "known_hosts"
    ec2("ssh", "--n-workers", 1, "--connect", "public", "--node", "worker-9", "true")
    assert [line.split(" ", 1)[1] for line in known.read_text().splitlines()] == [ED25519] * 2


@pytest.mark.parametrize(
    ("addresses", "network"),
    [
        (["172.31.16.4", "172.31.16.5"], "172.31.16.4/31"),
        (["172.31.16.5", "172.31.16.6"], "172.31.16.4/30"),
        (["10.0.0.1", "10.0.3.254", "10.0.1.7"], "10.0.0.0/22"),
    ],
)
def test_the_nodes_network_is_the_smallest_that_holds_all(addresses: list[str], network: str) -> None:
    assert common_network(addresses) == network


ON_NODES = [
    (["setup"], "would wait until this works: ssh "),
    (["setup"], "pair.sh on master"),
    (["setup"], "would build a wheel of "),
    (["setup"], r"would copy \S+\.whl to ubuntu@"),
    (["setup"], "trust.sh on worker-1"),
    (["setup"], "pre_run.sh on worker-0"),
    (["setup", "--nfs-ip-address", "10.0.0.9", "--nfs-mount-point", "/mnt/s"], "mount.sh on worker-0: .* 10.0.0.9 / /mnt/s"),
    (["run", "--", "train", "--seed", "7"], "start_job.sh on master: .* launch -n 2 --hostfile hosts_address .*train --seed 7"),
    (["run", "--", "train", "--resume", "--train-dir", "r"], "-- train --resume --train-dir r --trust-run$"),
    (["run", "--", "train", "--resume", "--task=t.py", "--train-dir", "r"], "train --resume --task=t.py --train-dir r$"),
    (["run", "--", "doctor"], "start_job.sh on master: .*psnode doctor"),
    (["ssh", "--node", "worker-1", "--", "echo", "a b"], "would run ssh .*StrictHostKeyChecking=yes .*'a b'"),
    (["put", "--node", "all", "cluster.toml", "x"], "would copy cluster.toml to ubuntu@"),
    (["get", "x", "y"], "would copy ubuntu@[0-9.]+:x to y"),
    (["logs"], "follow_job.sh on master"),
    (["stop"], "stop_job.sh on master"),
]


def test_a_dry_run_says_what_would_be_done_on_the_nodes_and_asks_only(
    ec2: Callable[..., Any], aws: Any, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(config.parent)
    assert ec2("launch", "--yes").code == 0
    aws.calls.clear()
    for words, shown in ON_NODES:
        done = ec2(words[0], "--dry-run", *words[1:])
        assert done.code == 0, done.err
        assert re.search(shown, done.out, re.M), done.out
    assert all(action.startswith(("Describe", "Get")) for action in aws.actions())
    assert not (config.parent / "state" / "known_hosts").exists()
    assert "call ec2 get_console_output" in ec2("setup", "--dry-run").out


def test_a_cluster_that_lost_a_node_trains_nothing_but_lets_its_owner_in(ec2: Any, api: Any) -> None:
    ec2("launch", "--yes")
    lost = re.search(r"^worker-0 +(\S+)", ec2("status").out, re.M)
    assert lost
    api.terminate_instances(InstanceIds=[lost[1]])
    for words in (["run", "--dry-run", "--", "train"], ["setup", "--dry-run"], ["get_hosts"]):
        done = ec2(*words)
        assert done.code == 2
        assert "2 of 3 nodes are running: run launch to complete the cluster" in done.err
    assert ec2("get", "--dry-run", "runs", "here").code == 0


def test_a_console_without_keys_is_waited_for_until_the_deadline(ec2: Any, config: Path) -> None:
    # moto's fixed console output has no keys
    config.write_text(config.read_text() + "launch_deadline = 1\n")
    ec2("launch", "--yes")
    done = ec2("ssh", "true")
    assert done.code == 4
    assert re.search(r"error: i-\w+ has not shown its host keys", done.err)
    assert not (config.parent / "state" / "known_hosts").exists()


def test_the_wheel_that_setup_sends_holds_the_program_and_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")
    wheels = []
    for _ in range(2):
        with package_of("", dry_run=False) as path:
            wheels.append(Path(path).read_bytes())
    # setup skips a node that has this wheel
    assert wheels[0] == wheels[1]
    names = set(zipfile.ZipFile(io.BytesIO(wheels[0])).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "psnode", "tools/ec2"], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    if tracked.returncode == 0:
        assert {name.replace("tools/ec2/", "psnode_ec2/") for name in tracked.stdout.split()} <= names
    tool = {"psnode_ec2/cli.py", "psnode_ec2/pre_run.sh", "psnode_ec2/start_job.sh"}
    assert {"psnode/cli/commands.py", "psnode/py.typed", *tool} <= names
    assert not any(name.startswith("tests/") for name in names)


@pytest.mark.parametrize(
    ("package", "words"), [("no/such.whl", "does not exist"), ("{folder}", "is no checkout of psnode")], ids=["wheel", "folder"]
)
def test_a_package_that_cannot_be_installed_is_refused_before_any_node_is_asked(
    ec2: Any, tmp_path: Path, package: str, words: str
) -> None:
    (tmp_path / "empty").mkdir()
    ec2("launch", "--yes")
    done = ec2("setup", "--launch-deadline", 1, "--package", package.format(folder=tmp_path / "empty"))
    assert done.code == 2
    assert words in done.err
