"""The user's key: its private half stays where it is, EC2 gives the public one to the nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.ec2.cluster import Cluster, Node
from tools.ec2.errors import ConfigurationError
from tools.ec2.resources import ensure
from tools.ec2.settings import Settings


def public_key(keyfile: Path) -> str:
    """The public half of the private key in `keyfile`, as authorized_keys has it. Raises ConfigurationError."""
    remedy = "set path_to_keyfile, or make one: ssh-keygen -t ed25519"
    try:
        keyfile.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"path_to_keyfile {keyfile} cannot be read ({error.strerror}): {remedy}") from None
    beside = keyfile.with_name(keyfile.name + ".pub")
    if beside.is_file():
        return beside.read_text().strip()
    done = subprocess.run(["ssh-keygen", "-y", "-P", "", "-f", keyfile], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigurationError(f"path_to_keyfile {keyfile} is no private key that can be used ({why}): {remedy}")
    return done.stdout.strip()


def check_key(cluster: Cluster, settings: Settings, public: str, nodes: Sequence[Node]) -> None:
    """That the key pair `key_name` exists, and that it, or the one that `nodes` let in, is that of the private key at hand.

    Raises ConfigurationError.
    """
    if settings.key_name:
        (pair,) = cluster.cloud.ask("describe_key_pairs", KeyNames=[settings.key_name], IncludePublicKey=True)["KeyPairs"]
        if not _same(pair, public):
            raise ConfigurationError(
                f"key_name {settings.key_name} is another key than {settings.keyfile}: name its private half in path_to_keyfile, "
                "or leave key_name out"
            )
    elif nodes and (found := _key_pair(cluster)) and not _same(found, public):
        raise ConfigurationError(
            f"the nodes of this cluster let in another key than {settings.keyfile}: set path_to_keyfile to the one they were "
            "launched with, or run shutdown first"
        )


def ensure_key(cluster: Cluster, settings: Settings, public: str) -> str:
    """The name of the EC2 key pair: the user's own, or one for this cluster made of `public`."""
    if settings.key_name:
        return settings.key_name
    others: set[str] = set()  # of a cluster without nodes, as check_key has seen

    def found() -> str | None:
        pair = _key_pair(cluster)
        if pair is None or _same(pair, public):
            return str(pair["KeyName"]) if pair else None
        others.add(pair["KeyName"])
        return None

    def make() -> None:
        while others:
            cluster.cloud.change("delete_key_pair", KeyName=others.pop())
        tags = cluster.tags("key-pair")
        cluster.cloud.change("import_key_pair", KeyName=cluster.title, PublicKeyMaterial=public.encode(), TagSpecifications=tags)

    return ensure(cluster, "key pair", found, make)


def _key_pair(cluster: Cluster) -> dict[str, Any] | None:
    pairs = cluster.cloud.ask("describe_key_pairs", Filters=cluster.filters(), IncludePublicKey=True)["KeyPairs"]
    return pairs[0] if pairs else None


def _same(pair: dict[str, Any], public: str) -> bool:
    """Whether a key pair of EC2's is that of `public`, whatever is written behind it."""
    return "PublicKey" not in pair or pair["PublicKey"].split()[:2] == public.split()[:2]
