"""The user's ssh key: the private half stays on this machine, and EC2 gives the public half to the nodes."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psnode_ec2.cluster import Cluster, Node
from psnode_ec2.ec2_errors import SettingsError
from psnode_ec2.resources import ensure
from psnode_ec2.settings import Settings


def public_key(keyfile: Path) -> str:
    """Return the public half of the private key in `keyfile`, in the form of authorized_keys.

    Raises SettingsError for an unusable key. A key that other users may read is unusable, since ssh refuses it.
    """
    remedy = "set path_to_keyfile, or make one: ssh-keygen -t ed25519"
    try:
        content, status = keyfile.read_bytes(), keyfile.stat()
    except OSError as error:
        raise SettingsError(f"path_to_keyfile {keyfile} cannot be read ({error.strerror}): {remedy}") from None
    if b"PRIVATE KEY" in content and status.st_uid == os.getuid() and status.st_mode & 0o077:
        raise SettingsError(f"path_to_keyfile {keyfile} may be read by others, and ssh refuses it: chmod 600 {keyfile}")
    beside = keyfile.with_name(keyfile.name + ".pub")
    done = subprocess.run(["ssh-keygen", "-y", "-P", "", "-f", keyfile], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if beside.is_file():
        public = beside.read_text(errors="replace").strip()
        if done.returncode == 0 and done.stdout.split()[:2] != public.split()[:2]:  # a key with a passphrase cannot be checked
            raise SettingsError(
                f"{beside} is not the public half of {keyfile}, which nodes would not let in: remove it, or make it anew with "
                f"ssh-keygen -y -f {keyfile}"
            )
        return public
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SettingsError(f"path_to_keyfile {keyfile} is no private key that can be used ({why}): {remedy}")
    return done.stdout.strip()


def check_key(cluster: Cluster, settings: Settings, public: str, nodes: Sequence[Node]) -> None:
    """Check that nodes accept the user's key, whose public half is `public`. Raises SettingsError otherwise.

    If `key_name` is set, the key pair of this name must exist and have this public key. Otherwise no key pair of `nodes` may
    have another one.
    """
    if settings.key_name:
        (pair,) = cluster.cloud.ask("describe_key_pairs", KeyNames=[settings.key_name], IncludePublicKey=True)["KeyPairs"]
        if not _same(pair, public):
            raise SettingsError(
                f"key_name {settings.key_name} is another key than {settings.keyfile}: name its private half in path_to_keyfile, "
                "or leave key_name out"
            )
    elif (let_in := {node.key for node in nodes}) and any(
        pair["KeyName"] in let_in and not _same(pair, public) for pair in _key_pairs(cluster)
    ):
        raise SettingsError(
            f"the nodes of this cluster let in another key than {settings.keyfile}: set path_to_keyfile to the one they were "
            "launched with, or run shutdown first"
        )


def ensure_key(cluster: Cluster, settings: Settings, public: str, launch: str) -> str:
    """Return the name of the EC2 key pair for new nodes: `key_name` if set, otherwise the cluster's key pair for `public`.

    A missing key pair of the cluster is made. Launches with different keys make one key pair each, so that the nodes of a
    launch accept only the key of that launch.
    """
    if settings.key_name:
        return settings.key_name
    name = f"{cluster.title}-{hashlib.sha256(' '.join(public.split()[:2]).encode()).hexdigest()[:8]}"

    def found() -> str | None:
        same = [str(pair["KeyName"]) for pair in _key_pairs(cluster) if _same(pair, public)]
        return min(same, default=None)

    def make() -> None:
        tags = cluster.tags("key-pair", launch=launch)
        cluster.cloud.change("import_key_pair", KeyName=name, PublicKeyMaterial=public.encode(), TagSpecifications=tags)

    return ensure(cluster, "key pair", found, make)


def _key_pairs(cluster: Cluster) -> list[dict[str, Any]]:
    pairs = cluster.cloud.ask("describe_key_pairs", Filters=cluster.filters(), IncludePublicKey=True)["KeyPairs"]
    return [pair for pair in pairs if cluster.owns(pair)]


def _same(pair: dict[str, Any], public: str) -> bool:
    """Return True if an EC2 key pair has the public key `public`, or if EC2 does not show its key. Comments are ignored."""
    return "PublicKey" not in pair or pair["PublicKey"].split()[:2] == public.split()[:2]
