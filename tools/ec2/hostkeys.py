"""The host keys of the nodes, as they printed them on their consoles when they started, pinned by instance id.

The console is read through EC2's API, so no one between this machine and the node can put another key in it.
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
from psnode_ec2.cluster import Cluster, Node
from psnode_ec2.ec2_errors import Ec2Error, HostKeyError, SettingsError
from psnode_ec2.settings import Settings

# cloud-init's own lines; a console may put a time or a carriage return on every line
_BLOCK = re.compile(r"BEGIN SSH HOST KEY KEYS-+\s(.*?)-+END SSH HOST KEY KEYS", re.S)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x00")
_BETWEEN = re.compile(r"(?<=[A-Za-z0-9+/])\[ *\d+\.\d+\][^\r\n]*[\r\n]+")  # the kernel, in the middle of a key
_KEY = re.compile(r"\b(ssh-ed25519|ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa) ([A-Za-z0-9+/]{60,}={0,2})(?=\s|$)")


def pin(cluster: Cluster, settings: Settings, nodes: Sequence[Node], *, patient: bool = True) -> Path:
    """Path of a known_hosts file with the keys of all `nodes` under their ids; asks for those it does not have yet.

    A key that is there is never replaced: an instance keeps its keys for life. Raises HostKeyError if a console does not
    show them within launch_deadline, or, without patience, at once.
    """
    path = settings.state / "known_hosts"
    try:
        known = pinned(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read ({error}): set state_dir to another folder") from None
    missing = [node for node in nodes if node.id not in known]
    if cluster.cloud.dry_run:
        for node in missing:
            console_keys(cluster, node)  # which prints the call
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
        progress(f"waiting: the consoles of {len(missing)} nodes do not show their host keys yet")
        cluster.cloud.pause(attempt, first=3.0, longest=15.0)
    raise HostKeyError(
        f"{missing[0].id} has not shown its host keys on its console within {settings.launch_deadline} s: try again, "
        "or use an image with cloud-init"
    )


def console_keys(cluster: Cluster, node: Node) -> list[str]:
    """Keys that `node` printed, `TYPE BASE64` each; empty if it has printed none yet.

    The output of the start is kept, but EC2 shows it minutes later than the latest; which in the end has gone over the keys.
    """
    try:
        keys = keys_in(cluster.cloud.ask("get_console_output", InstanceId=node.id, Latest=True).get("Output") or "")
    except SettingsError:
        raise
    except Ec2Error:  # Xen's instance types have no latest output
        keys = []
    return keys or keys_in(cluster.cloud.ask("get_console_output", InstanceId=node.id).get("Output") or "")


def keys_in(console: str) -> list[str]:
    """The keys in a console's output, as text or in base64: the first ones, which the start printed before anybody logged in.

    A key that other output has cut or mixed with its own is put together again or left out: a wrong one would be pinned for good.
    """
    if re.fullmatch(r"[A-Za-z0-9+/=\s]+", console):
        with contextlib.suppress(ValueError):  # a word like "login" looks like it
            console = base64.b64decode(console).decode("utf-8", "replace")
    blocks = _BLOCK.findall(_ESCAPE.sub("", console))
    if not blocks:
        return []
    found = _KEY.findall(blocks[0]) + _KEY.findall(_BETWEEN.sub("", blocks[0]))
    return list(dict.fromkeys(f"{kind} {text}" for kind, text in found if _is_whole(kind, text)))


def _is_whole(kind: str, text: str) -> bool:
    """True if `text` is a public key of this kind in base64: strings with a length prefix (RFC 4253, 6.6), and no more."""
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
    """Keys by instance id, without those that were cut while they were written."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        host, _, key = line.partition(" ")
        kind, _, text = key.partition(" ")
        if _is_whole(kind, text):
            found.setdefault(host, []).append(key)
    return found


def keep_keys(path: Path, keys: dict[str, list[str]]) -> None:
    """Add keys by instance id to the file, in whole lines. Raises SettingsError."""
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
    """Lines for a known_hosts file on the nodes, where they go by their private addresses."""
    keys = pinned(path)
    return "".join(f"{node.private_address} {key}\n" for node in nodes for key in keys[node.id])
