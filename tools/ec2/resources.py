"""What a cluster has besides its nodes: a security group, a placement group, and the public half of the user's key."""

from __future__ import annotations

import contextlib
import ipaddress
import subprocess
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.ec2.cloud import progress
from tools.ec2.cluster import CLUSTER, OWNER, Cluster, Node, tags_of
from tools.ec2.errors import AlreadyThereError, ConfigurationError, Ec2Error, InUseError, NotShownError
from tools.ec2.settings import Settings

_IN_USE = 24  # tries to remove a group that is still in use: about four minutes
_OWN_ADDRESS = "https://checkip.amazonaws.com"  # answers with the address that the question came from


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

    return _ensure(cluster, "key pair", found, make)


def _key_pair(cluster: Cluster) -> dict[str, Any] | None:
    pairs = cluster.cloud.ask("describe_key_pairs", Filters=cluster.filters(), IncludePublicKey=True)["KeyPairs"]
    return pairs[0] if pairs else None


def _same(pair: dict[str, Any], public: str) -> bool:
    """Whether a key pair of EC2's is that of `public`, whatever is written behind it."""
    return "PublicKey" not in pair or pair["PublicKey"].split()[:2] == public.split()[:2]


def ensure_firewall(cluster: Cluster, settings: Settings, vpc: str, ssh_from: str) -> str:
    """The id of the cluster's security group: in come port 22 from `ssh_from`, everything from members, nothing else."""

    def found() -> str | None:
        filters = [*cluster.filters(), {"Name": "vpc-id", "Values": [vpc]}]
        groups = cluster.cloud.ask("describe_security_groups", Filters=filters)["SecurityGroups"]
        return groups[0]["GroupId"] if groups else None

    def make() -> None:
        text = f"psnode cluster {cluster.name}: ssh from its owner, all traffic among its nodes"
        tags = cluster.tags("security-group")
        cluster.cloud.change(
            "create_security_group", GroupName=cluster.title, Description=text, VpcId=vpc, TagSpecifications=tags
        )

    group = _ensure(cluster, "security group", found, make)
    _settle_rules(cluster, settings, group, ssh_from)
    return group


def let_in(cluster: Cluster, settings: Settings, ssh_from: str) -> None:
    """Open the cluster's security group, if there is one, to `ssh_from` and to nobody else: its owner may have moved."""
    for group in cluster.cloud.ask("describe_security_groups", Filters=cluster.filters())["SecurityGroups"]:
        if _own(cluster, group):
            _settle_rules(cluster, settings, group["GroupId"], ssh_from)


def _settle_rules(cluster: Cluster, settings: Settings, group: str, ssh_from: str) -> None:
    """Make the group's ingress what it should be, adding and removing what differs."""
    cloud = cluster.cloud
    new = cloud.dry_run and group.startswith("(")
    there = {} if new else cloud.ask("describe_security_groups", GroupIds=[group])["SecurityGroups"][0]
    now = _rules(there.get("IpPermissions", []))
    family = "Ipv6Ranges" if ":" in ssh_from else "IpRanges"
    wanted = {("tcp", 22, 22, family, ssh_from), ("-1", -1, -1, "UserIdGroupPairs", group)}
    for call, rules in (("revoke_security_group_ingress", now - wanted), ("authorize_security_group_ingress", wanted - now)):
        if rules:
            try:
                cloud.change_shown(call, GroupId=group, IpPermissions=[_permission(*rule) for rule in sorted(rules)])
            except AlreadyThereError:  # by another launch of the same cluster, at the same time
                continue
    # that everything may go out, as in every new group, is not enough for EFA: it wants its own group named
    members = ("-1", -1, -1, "UserIdGroupPairs", group)
    if settings.efa and members not in _rules(there.get("IpPermissionsEgress", [])):
        with contextlib.suppress(AlreadyThereError):
            cloud.change_shown("authorize_security_group_egress", GroupId=group, IpPermissions=[_permission(*members)])


def _rules(permissions: Sequence[dict[str, Any]]) -> set[tuple[str, int, int, str, str]]:
    keys = {"IpRanges": "CidrIp", "Ipv6Ranges": "CidrIpv6", "UserIdGroupPairs": "GroupId"}
    return {
        (each["IpProtocol"], each.get("FromPort", -1), each.get("ToPort", -1), family, member[key])
        for each in permissions
        for family, key in keys.items()
        for member in each.get(family, [])
    }


def _permission(protocol: str, first: int, last: int, family: str, value: str) -> dict[str, Any]:
    key = {"IpRanges": "CidrIp", "Ipv6Ranges": "CidrIpv6", "UserIdGroupPairs": "GroupId"}[family]
    ports = {} if protocol == "-1" else {"FromPort": first, "ToPort": last}
    return {"IpProtocol": protocol, **ports, family: [{key: value}]}


def ensure_placement(cluster: Cluster) -> str:
    """The name of the cluster's placement group, where AWS puts instances on one fast network."""

    def found() -> str | None:
        groups = cluster.cloud.ask("describe_placement_groups", Filters=cluster.filters())["PlacementGroups"]
        return next((group["GroupName"] for group in groups if group["State"] in ("pending", "available")), None)

    def make() -> None:
        tags = cluster.tags("placement-group")
        cluster.cloud.change("create_placement_group", GroupName=cluster.title, Strategy="cluster", TagSpecifications=tags)

    return _ensure(cluster, "placement group", found, make)


def _ensure(cluster: Cluster, kind: str, found: Callable[[], str | None], make: Callable[[], None]) -> str:
    """What `found` returns, after `make` if need be; a name already taken by somebody else is an error."""
    if (there := found()) is not None:
        return there
    taken = False
    for attempt in range(6):
        try:
            make()
        except AlreadyThereError:
            taken = True
        if (there := found()) is not None:
            return there
        if cluster.cloud.dry_run:
            return f"({kind})"
        if taken and attempt:
            raise ConfigurationError(f"there is a {kind} {cluster.title} without this cluster's tags: choose another name")
        cluster.cloud.pause(attempt)  # EC2 may show late what it has made
    raise Ec2Error(f"EC2 made the {kind} {cluster.title} but does not show it: run the command again")


def own_range(cluster: Cluster, settings: Settings) -> str:
    """The addresses that may reach port 22. Raises ConfigurationError if this machine's cannot be found out."""
    if settings.ssh_from != "auto":
        return settings.ssh_from
    if cluster.cloud.dry_run:
        cluster.cloud.say(f"call {_OWN_ADDRESS}")
    try:
        with urllib.request.urlopen(_OWN_ADDRESS, timeout=10) as answer:
            address = ipaddress.ip_address(answer.read(64).decode("ascii").strip())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"this machine's public address cannot be found out ({error}): set ssh_from to it, as in 203.0.113.7/32"
        ) from None
    return f"{address}/{address.max_prefixlen}"


def remove_resources(cluster: Cluster) -> list[str]:
    """Remove the groups and the key pair of a cluster without nodes; returns their names.

    What cannot be removed does not keep the rest: the first error is raised when all has been tried.
    """
    cloud, filters = cluster.cloud, cluster.filters()
    calls: list[tuple[str, str, dict[str, str]]] = []
    for group in cloud.ask("describe_security_groups", Filters=filters)["SecurityGroups"]:
        if _own(cluster, group):
            calls.append((f"security group {group['GroupName']}", "delete_security_group", {"GroupId": group["GroupId"]}))
    for group in cloud.ask("describe_placement_groups", Filters=filters)["PlacementGroups"]:
        if _own(cluster, group) and group["State"] in ("pending", "available"):
            calls.append((f"placement group {group['GroupName']}", "delete_placement_group", {"GroupName": group["GroupName"]}))
    for pair in cloud.ask("describe_key_pairs", Filters=filters)["KeyPairs"]:
        if _own(cluster, pair):
            calls.append((f"key pair {pair['KeyName']}", "delete_key_pair", {"KeyName": pair["KeyName"]}))
    gone, failed = [], []
    for name, call, what in calls:
        try:
            _remove(cluster, call, what)
            gone.append(name)
        except Ec2Error as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return gone


def _remove(cluster: Cluster, call: str, what: dict[str, str]) -> None:
    """Make the call until nothing uses any more what it removes: network cards outlast their instances by some seconds."""
    for attempt in range(_IN_USE):
        try:
            cluster.cloud.change(call, **what)
        except NotShownError:
            return
        except InUseError:
            if attempt + 1 == _IN_USE:
                raise
            progress(f"waiting until nothing uses {' '.join(what.values())} any more")
            cluster.cloud.pause(attempt, first=1.0, longest=15.0)
        else:
            return


def _own(cluster: Cluster, resource: dict[str, Any]) -> bool:
    """That it carries both tags: checked here again, whatever the filter let through."""
    tags = tags_of(resource)
    return tags.get(CLUSTER) == cluster.name and tags.get(OWNER) == cluster.owner
