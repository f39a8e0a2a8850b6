"""Choice of the image to start: the newest one of a publisher, by name and for the processor of the instance types."""

from __future__ import annotations

import re
from dataclasses import dataclass

from psnode_ec2.cloud import Cloud
from psnode_ec2.errors import ConfigurationError

# image_id: owner and name pattern. Canonical's account publishes Ubuntu; amazon is an alias that only AWS can have.
_PUBLISHERS = {
    "ubuntu": ("099720109477", "ubuntu/images/hvm-ssd*/ubuntu-*-server-*"),
    "deep-learning": ("amazon", "Deep Learning OSS Nvidia Driver AMI GPU PyTorch * (Ubuntu *)*"),
}
_LTS = re.compile(r"ubuntu-[a-z]+-(\d+)\.04-")  # an Ubuntu of April of an even year


@dataclass(frozen=True)
class Image:
    """An AMI, the device of its root volume, and the size of its other volumes."""

    id: str
    name: str
    root: str
    more_gib: int = 0


def find_image(cloud: Cloud, image_id: str, architecture: str) -> Image:
    """The image that `image_id` stands for. Raises ConfigurationError if there is none for `architecture`."""
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
        raise ConfigurationError(
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
