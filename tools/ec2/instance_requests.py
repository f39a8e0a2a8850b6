"""The image of the nodes, and the parameters of a RunInstances call."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psnode.config.plain_json import to_json
from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import ENDED, Cluster
from psnode_ec2.ec2_errors import OthersError, SettingsError, SpentTokenError, TakenTokenError
from psnode_ec2.places import Place
from psnode_ec2.settings import Settings

_UNSHOWN = 4  # tries to find the instances of another launch; if no instance appears, all ended more than an hour ago
_LIVES = 100  # maximum replacements of all nodes of a role within a day, for which EC2 remembers a client token
_PUBLISHERS = {
    "ubuntu": ("099720109477", "ubuntu/images/hvm-ssd*/ubuntu-*-server-*"),
    "deep-learning": ("amazon", "Deep Learning OSS Nvidia Driver AMI GPU PyTorch * (Ubuntu *)*"),
}
_LTS = re.compile(r"ubuntu-[a-z]+-(\d+)\.04-")  # Ubuntu's April releases; those in even years are LTS


@dataclass(frozen=True)
class Common:
    """Settings that all nodes of a launch share.

    `launch`: the id by which a launch recognises the instances that it has started.
    """

    image: Image
    key: str
    firewall: str
    placement: str | None
    launch: str = ""


def start(
    cluster: Cluster, settings: Settings, common: Common, place: Place, role: str, count: int, moment: Sequence[object]
) -> set[str]:
    """Start exactly `count` nodes of `role` and return their ids, or raise.

    `moment` describes the state of the cluster, and is part of the client token. A call that is repeated because its result is
    unknown returns the instances of the first call. If another launch has started instances with the same `moment`, OthersError
    is raised while these live. Once they have ended, new ones are started.
    """
    for life in range(_LIVES):
        wanted = request(cluster, settings, common, place, role, count, (*moment, life))
        try:
            found = cluster.cloud.change_shown("run_instances", **wanted).get("Instances", [])
        except SpentTokenError:
            continue
        except TakenTokenError:
            if _lives(cluster, wanted["ClientToken"]):
                raise OthersError(f"another launch starts nodes of cluster {cluster.name}") from None
            continue
        if not found or any(instance["State"]["Name"] not in ENDED for instance in found):
            return {instance["InstanceId"] for instance in found}
    raise SpentTokenError(f"EC2 has ended {_LIVES} such groups of nodes within a day: find out why, and try again tomorrow")


def request(
    cluster: Cluster, settings: Settings, common: Common, place: Place, role: str, count: int, moment: Sequence[object]
) -> dict[str, Any]:
    """Return the parameters of RunInstances for exactly `count` nodes of `role`.

    The client token is derived from the cluster, the role, the place and `moment`, which describes the state of the cluster. So
    if several launches see the same state, EC2 starts instances for only one of them, even while it does not show these
    instances yet.
    """
    # with all digits: not rounded up, and without an exponent
    limit = f"{settings.spot_price:.8f}".rstrip("0").rstrip(".") if settings.spot_price else ""
    wanted: dict[str, Any] = {
        "ImageId": common.image.id,
        "InstanceType": place.master_type if role == "master" else place.worker_type,
        "MinCount": count,
        "MaxCount": count,
        "KeyName": common.key,
        "Placement": {"GroupName": common.placement} if common.placement else {},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "UserData": user_data(settings, role),
        # only version 2 of the metadata service, which containers, one hop further away, cannot reach
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
        "BlockDeviceMappings": [_root_volume(common.image, settings)],
        "TagSpecifications": [
            *cluster.tags("instance", launch=common.launch, role=role, hours=settings.max_hours, limit=limit),
            *cluster.tags("volume", "network-interface", launch=common.launch, role=role),
        ],
        **_network(settings, common, place),
    }
    if settings.instance_profile and role == "master":
        wanted["IamInstanceProfile"] = {"Name": settings.instance_profile}
    if settings.method == "spot":
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        options |= {"MaxPrice": limit} if limit else {}
        wanted["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        wanted["TagSpecifications"] += cluster.tags("spot-instances-request", launch=common.launch, role=role)
    text = to_json([cluster.name, cluster.owner, role, place.subnet, wanted["InstanceType"], list(moment)])
    return {**wanted, "ClientToken": hashlib.sha256(text.encode()).hexdigest()[:64]}


def _lives(cluster: Cluster, token: str) -> bool:
    """Return True if a node that was started with this client token is alive."""
    for attempt in range(_UNSHOWN):
        found = cluster.cloud.ask("describe_instances", Filters=[{"Name": "client-token", "Values": [token]}])
        if states := [each["State"]["Name"] for held in found.get("Reservations", []) for each in held["Instances"]]:
            return any(state not in ENDED for state in states)
        cluster.cloud.pause(attempt, first=1.0)
    return False


def user_data(settings: Settings, role: str) -> str:
    """Return the script that a node runs at its start. The script sets timers that end the node, and thus its costs."""
    parts = [("end_after.sh", str(60 * settings.max_hours))] if settings.max_hours else []
    if settings.idle_minutes and (role != "master" or settings.lasts):
        parts.append(("end_when_idle.sh", f"{settings.ssh_username} {settings.idle_minutes}"))
    texts = (f"(\nset -- {words}\n{Path(__file__).with_name(name).read_text()})\n" for name, words in parts)
    return "#!/bin/sh\n" + "".join(texts) if parts else ""


def _root_volume(image: Image, settings: Settings) -> dict[str, Any]:
    volume = {"Encrypted": True, "VolumeSize": settings.volume_gib, "VolumeType": "gp3", "DeleteOnTermination": True}
    return {"DeviceName": image.root, "Ebs": volume}


def _network(settings: Settings, common: Common, place: Place) -> dict[str, Any]:
    gives = settings.connect == "public" and not place.maps  # request a public address if the subnet assigns none
    if not settings.efa and not gives:
        return {"SubnetId": place.subnet, "SecurityGroupIds": [common.firewall]}
    card = {"DeviceIndex": 0, "SubnetId": place.subnet, "Groups": [common.firewall], "DeleteOnTermination": True}
    efa = {"InterfaceType": "efa"} if settings.efa else {}
    return {"NetworkInterfaces": [{**card, **efa, **({"AssociatePublicIpAddress": True} if gives else {})}]}


# _PUBLISHERS: owner and name pattern by image_id. Canonical's account publishes Ubuntu; the alias amazon stands only for AWS.


@dataclass(frozen=True)
class Image:
    """An AMI, the device of its root volume, and the total size of its other volumes."""

    id: str
    name: str
    root: str
    more_gib: int = 0


def find_image(cloud: Cloud, image_id: str, architecture: str) -> Image:
    """Return the image that `image_id` names: an id, or an alias such as ubuntu for the newest image.

    Raises SettingsError if there is no image for `architecture`.
    """
    if image_id in _PUBLISHERS:
        owner, pattern = _PUBLISHERS[image_id]
        values = {"name": pattern, "architecture": architecture, "state": "available", "virtualization-type": "hvm"}
        filters = [{"Name": name, "Values": [value]} for name, value in values.items()]
        images = cloud.ask("describe_images", Owners=[owner], Filters=filters)["Images"]
    else:
        images = cloud.ask("describe_images", ImageIds=[image_id])["Images"]
    fitting = [image for image in images if image.get("Architecture") == architecture]
    if image_id == "ubuntu":
        fitting = [image for image in fitting if (match := _LTS.search(image["Name"])) and int(match[1]) % 2 == 0]
    if not fitting:
        raise SettingsError(
            f"image_id {image_id}: no image for {architecture} in this region: name an ami-... that fits the types"
        )
    image = max(fitting, key=lambda image: (_version(image["Name"]), image["CreationDate"], image["Name"]))
    root = image.get("RootDeviceName") or "/dev/sda1"
    others = [each for each in image.get("BlockDeviceMappings", []) if each.get("DeviceName") != root]
    return Image(
        image["ImageId"], image.get("Name", image_id), root, sum(each.get("Ebs", {}).get("VolumeSize", 0) for each in others)
    )


def _version(name: str) -> int:
    match = _LTS.search(name)
    return int(match[1]) if match else 0
