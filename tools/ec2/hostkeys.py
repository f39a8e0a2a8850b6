"""Host keys of the nodes, pinned by instance id. Every node prints its keys on its console at its start.

The console is read through EC2's API, so that an attacker between this machine and a node cannot substitute a key.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from psnode_ec2.cloud import progress
from psnode_ec2.cluster import Cluster, Node, counted
from psnode_ec2.ec2_errors import Ec2Error, HostKeyError, SettingsError
from psnode_ec2.settings import Settings

# the lines come from cloud-init; a console may add a time or a carriage return to every line
_BLOCK = re.compile(r"BEGIN SSH HOST KEY KEYS-+\s(.*?)-+END SSH HOST KEY KEYS", re.S)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x00")
_BETWEEN = re.compile(r"(?<=[A-Za-z0-9+/])\[ *\d+\.\d+\][^\r\n]*[\r\n]+")  # kernel output in the middle of a key
_KEY = re.compile(r"\b(ssh-ed25519|ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa) ([A-Za-z0-9+/]{60,}={0,2})(?=\s|$)")


def pin(cluster: Cluster, settings: Settings, nodes: Sequence[Node], *, patient: bool = True) -> Path:
    """Return the path of a known_hosts file with the keys of all `nodes` by instance id. Fetch missing keys.

    A key in the file is never replaced, since an instance keeps its keys for life. Raises HostKeyError if a console does not
    show the keys within launch_deadline. If `patient` is False, each console is read only once.
    """
    path = settings.state / "known_hosts"
    try:
        known = pinned(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read ({error}): set state_dir to another folder") from None
    missing = [node for node in nodes if node.id not in known]
    if cluster.cloud.dry_run:
        for node in missing:
            console_keys(cluster, node)  # in a dry run this prints the call
        return path
    deadline = time.monotonic() + settings.launch_deadline
    for attempt in range(10**6):
        found = {node.id: keys for node in missing if (keys := console_keys(cluster, node))}
        keep_keys(path, found)
        missing = [node for node in missing if node.id not in found]
        if not missing:
            return path
        if not patient or time.monotonic() > deadline:
            break
        progress(f"waiting: no host keys yet on the consoles of {counted(len(missing), 'node')}")
        cluster.cloud.pause(attempt, first=3.0, longest=15.0)
    raise HostKeyError(
        f"{missing[0].id} has not shown its host keys on its console within {settings.launch_deadline} s: try again, "
        "or use an image with cloud-init"
    )


def console_keys(cluster: Cluster, node: Node) -> list[str]:
    """Return the keys that `node` has printed, each as `TYPE BASE64`; empty if the console shows no keys yet.

    EC2 offers two outputs. The latest output has the keys early, but loses them after some time. The output of the start keeps
    them, but EC2 shows it minutes later.
    """
    try:
        keys = keys_in(cluster.cloud.ask("get_console_output", InstanceId=node.id, Latest=True).get("Output") or "")
    except SettingsError:
        raise
    except Ec2Error:  # instance types with Xen have no latest output
        keys = []
    return keys or keys_in(cluster.cloud.ask("get_console_output", InstanceId=node.id).get("Output") or "")


def keys_in(console: str) -> list[str]:
    """Return the first keys in a console's output, which is text or base64.

    The node printed the first keys at its start, before any user could log in. If other output interrupts a key, the key is
    restored or left out, since a wrong key would stay pinned.
    """
    if re.fullmatch(r"[A-Za-z0-9+/=\s]+", console):
        with contextlib.suppress(ValueError):  # an ordinary word such as "login" matches too
            console = base64.b64decode(console).decode("utf-8", "replace")
    blocks = _BLOCK.findall(_ESCAPE.sub("", console))
    if not blocks:
        return []
    found = _KEY.findall(blocks[0]) + _KEY.findall(_BETWEEN.sub("", blocks[0]))
    return list(dict.fromkeys(f"{kind} {text}" for kind, text in found if _is_whole(kind, text)))


def _is_whole(kind: str, text: str) -> bool:
    """Return True if `text` is a complete public key of this kind in base64: strings with length prefixes (RFC 4253, 6.6)."""
    try:
        rest, strings = base64.b64decode(text, validate=True), []
    except ValueError:
        return False
    while len(rest) >= 4:
        end = 4 + int.from_bytes(rest[:4])
        strings.append(rest[4:end])
        if end > len(rest):
            return False
        rest = rest[end:]
    return not rest and strings[:1] == [kind.encode()] and len(strings) == (2 if kind == "ssh-ed25519" else 3)


def pinned(path: Path) -> dict[str, list[str]]:
    """Return the keys in the file by instance id. A key that an interrupted write has truncated is left out."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        host, _, key = line.partition(" ")
        kind, _, text = key.partition(" ")
        if _is_whole(kind, text):
            found.setdefault(host, []).append(key)
    return found


def keep_keys(path: Path, keys: dict[str, list[str]]) -> None:
    """Append `keys`, by instance id, to the file in whole lines. Raises SettingsError if the file cannot be written."""
    lines = [f"{host} {key}\n" for host, each in keys.items() for key in each]
    if lines:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with path.open("a+b") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 1))
                begin = "" if file.read(1) in (b"", b"\n") else "\n"
                file.write((begin + "".join(lines)).encode())
        except OSError as error:
            raise SettingsError(f"{path} cannot be written ({error.strerror}): set state_dir to another folder") from None


def for_addresses(path: Path, nodes: Iterable[Node]) -> str:
    """Return lines for the master's known_hosts file, so that it recognises `nodes` by their private addresses."""
    keys = pinned(path)
    return "".join(f"{node.private_address} {key}\n" for node in nodes for key in keys[node.id])
