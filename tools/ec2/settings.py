"""Settings of a cluster: one table, from which TOML keys, flags, checks and documentation are made."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psnode.config.declaration import Setting, Voice, option, read_toml, settings_of
from psnode_ec2.ec2_errors import CapError, SettingsError

NAME = r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?"
_LEAST_PRICE = 0.0001
_LEAST_IDLE = 5
_WIDEST = {4: 8, 6: 16}  # shortest allowed prefix by IP version, since no single owner has a larger network
AUTO = -1  # stands for the word auto in settings that are numbers
TYPE = r"[a-z0-9-]+\.[a-z0-9-]+"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one cluster. Every field is a TOML key and, with hyphens, a flag. Money is in USD."""

    name: str = option(
        "", "of the cluster: lower-case letters, digits and hyphens; part of every tag", pattern=NAME, example="atomo"
    )
    owner: str = option(
        "",
        "whose cluster it is, a tag; default: the user, or role-NAME of the role, that the credentials belong to",
        pattern=r"[\w.@=+,-]{1,69}",
    )
    region: str = option("", "AWS region; default: what AWS_REGION or the profile says", example="us-west-2")
    profile: str = option("", "profile of the AWS configuration; default: as for every AWS tool")
    availability_zone: str = option("", "the zone tried first; default: every zone that has the types", example="us-west-2b")
    fallback_zones: tuple[str, ...] = option((), "zones tried when the first has no room; the whole cluster moves")
    n_workers: int = option(2, "worker nodes; the master is one more", minimum=1, maximum=255)
    workers_per_node: int = option(
        AUTO, "workers on each worker node; auto: one for each of its GPUs, or one", minimum=1, maximum=64, words={"auto": AUTO}
    )
    workers_on_master: int = option(
        0,
        "workers beside rank 0 on the master; auto: one for each of its GPUs",
        minimum=0,
        maximum=64,
        words={"auto": AUTO},
    )
    method: str = option("on-demand", "how instances are bought", choices=("on-demand", "spot"))
    place_order: str = option(
        "given",
        "order of zones and types: as given; by the spot prices of a day; or by EC2's score of their room, then by price",
        choices=("given", "price", "capacity"),
    )
    rebalance: str = option(
        "note",
        "what a spot node does when EC2 says that it will perhaps want it back: note it, or stop the job with a checkpoint",
        choices=("note", "stop"),
    )
    spot_price: float = option(0.0, "the most to pay for a spot instance and hour; 0: up to the on-demand price", minimum=0)
    master_type: str = option("m5.2xlarge", "instance type of the master", pattern=TYPE)
    worker_type: str = option("m5.2xlarge", "instance type of the workers", pattern=TYPE)
    fallback_types: tuple[str, ...] = option(
        (), "types tried, for all nodes, when no zone has room for the first ones", pattern=TYPE
    )
    image_id: str = option(
        "ubuntu", "ubuntu: the newest LTS; deep-learning: AWS's newest with PyTorch and NVIDIA drivers; or your own ami-...",
        pattern=r"ubuntu|deep-learning|ami-[0-9a-f]{8,17}",
    )  # fmt: skip
    volume_gib: int = option(50, "size of the encrypted root volume", minimum=8, maximum=16384)
    subnet_id: str = option("", "launch in this subnet; default: the default subnet of the zone", pattern=r"subnet-[0-9a-f]+")
    placement_group: bool = option(
        True, "put the nodes next to each other (a cluster placement group); false: none is made, and none removed"
    )
    efa: bool = option(False, "elastic fabric adapters; the types must have them and the image their driver")
    ssh_username: str = option("ubuntu", "the user on the nodes", pattern=r"[a-z_][a-z0-9_-]{0,31}")
    path_to_keyfile: Path = option(Path("~/.ssh/id_ed25519"), "your private key; it never leaves this machine")
    key_name: str = option(
        "", "an EC2 key pair that belongs to path_to_keyfile; default: its public half is registered for this cluster"
    )
    ssh_from: str = option("auto", "the addresses that may reach port 22, in CIDR form; auto: this machine's public one")
    connect: str = option("public", "the address by which this machine reaches the nodes", choices=("public", "private"))
    nfs_ip_address: str = option("", "an NFS or EFS server that all nodes mount", example="172.31.14.225")
    nfs_mount_point: str = option("", "where they mount it", pattern=r"/[\w./-]+", example="/home/ubuntu/shared")
    nfs_export: str = option("/", "what they mount of it", pattern=r"/[\w./-]*")
    max_instances: int = option(9, "launch refuses to have more nodes than this", minimum=2, maximum=256)
    max_hourly_price: float = option(
        10.0, "launch refuses a cluster that may cost more an hour, with its volumes and addresses", minimum=0
    )
    max_hours: int = option(24, "every node ends itself after so many hours; 0: never", minimum=0, maximum=720)
    idle_minutes: int = option(
        0,
        "a node ends itself when nothing of yours has run on it for so many minutes, the master only where what was trained is "
        "kept elsewhere; 0: never",
        minimum=0,
        maximum=1440,
    )
    prices: Mapping[str, float] = option(
        {},
        "on-demand prices an hour by type, and of gp3 for a GiB and a month, where the price list cannot be asked",
        example={"m5.2xlarge": 0.384, "gp3": 0.08},
    )
    checkpoints: str = option(
        "",
        "a place in S3 where the master keeps its checkpoints, below the cluster's name, and finds them when it is another one",
        pattern=r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_.-]+)*",
        example="s3://my-bucket/psnode",
    )
    instance_profile: str = option(
        "", "the profile with which the master reaches checkpoints; `export iam-policy` prints what its role needs",
        pattern=r"[\w+=,.@-]{1,128}", example="psnode-nodes",
    )  # fmt: skip
    package: str = option(
        "",
        "what setup installs: a wheel, a checkout, or a pip requirement, also a URL; "
        "default: the checkout this tool is in, or psnode of its version",
    )
    constraints: Path | None = option(
        None, "a constraints file of pip for what setup installs; default: constraints.txt of the checkout, if that is installed"
    )
    remote_dir: str = option("psnode", "where everything lies on a node; relative to the home directory", pattern=r"[\w./-]+")
    remote_venv: str = option(
        "",
        "the virtual environment on the nodes, relative to the home directory; default: .venv in remote_dir",
        pattern=r"[\w./-]+",
    )
    state_dir: Path | None = option(None, "where host keys are kept; default: ~/.local/state/psnode-ec2/NAME")
    keep_dir: Path | None = option(
        None, "where shutdown puts the newest checkpoint of the nodes before it ends them; default: kept in state_dir"
    )
    launch_deadline: int = option(600, "seconds until all nodes must be running, and their host keys known", minimum=1)
    capacity_attempts: int = option(3, "how often to go through zones and types before giving up", minimum=1, maximum=100)

    def __post_init__(self) -> None:
        for name, setting in FIELDS.items():
            object.__setattr__(self, name, setting.check(getattr(self, name), name))
        if not self.name:
            raise SettingsError("name is not set: give the cluster one, --name or name = in the file")
        if bool(self.nfs_ip_address) != bool(self.nfs_mount_point):
            raise SettingsError("nfs_ip_address and nfs_mount_point belong together: set both or none")
        if self.nfs_ip_address:
            _address("nfs_ip_address", self.nfs_ip_address)
        elif self.nfs_export != "/":
            raise SettingsError(f"nfs_export is {self.nfs_export} but nfs_ip_address is not set: set it, or drop nfs_export")
        if self.ssh_from != "auto":
            _cidr(self.ssh_from)
        if 0 < self.spot_price < _LEAST_PRICE:
            raise SettingsError(f"spot_price must be 0, for no limit of its own, or at least {_LEAST_PRICE:g} USD an hour")
        for name, price in self.prices.items():
            if price <= 0:
                raise SettingsError(f"prices: that of {name} is {price:g}: it must be more than 0 USD an hour")
        if self.spot_price and self.method != "spot":
            raise SettingsError(f"spot_price is {self.spot_price:g} but method is on-demand: set method to spot, or drop it")
        if bool(self.checkpoints) != bool(self.instance_profile):
            raise SettingsError("checkpoints and instance_profile belong together: set both or none")
        if self.place_order != "given" and self.method != "spot":
            raise SettingsError(
                f"place_order is {self.place_order} but method is on-demand, whose prices are the same in all zones: drop it"
            )
        if 0 < self.idle_minutes < _LEAST_IDLE:
            raise SettingsError(f"idle_minutes must be 0, for never, or at least {_LEAST_IDLE}: setup takes its time")
        if self.n_workers + 1 > self.max_instances:
            raise CapError(
                f"n_workers = {self.n_workers} and a master exceed max_instances = {self.max_instances}: raise it if you mean it"
            )

    @property
    def keyfile(self) -> Path:
        return self.path_to_keyfile.expanduser()

    @property
    def state(self) -> Path:
        return (self.state_dir or Path("~/.local/state/psnode-ec2") / self.name).expanduser()

    @property
    def kept(self) -> Path:
        return self.keep_dir.expanduser() if self.keep_dir else self.state / "kept"

    @property
    def lasts(self) -> bool:
        """True if trained weights are also stored outside the nodes."""
        return bool(self.nfs_ip_address or self.checkpoints)

    @property
    def store(self) -> str:
        """The URL of the cluster's prefix in the bucket that `checkpoints` names; empty if the setting is empty."""
        return f"{self.checkpoints}/{self.name}" if self.checkpoints else ""

    @property
    def venv(self) -> str:
        return self.remote_venv or f"{self.remote_dir}/.venv"


FIELDS = settings_of(Settings, Voice(SettingsError, by_key=True))


def load(path: Path | None, flags: Mapping[str, Any], unnamed: str = "") -> Settings:
    """Return the settings of the TOML file at `path`, if any, overridden by `flags`. Raises SettingsError.

    `unnamed`: name of the cluster if neither the file nor the flags name it.
    """
    file = read_toml(path, FIELDS, "; `export config` prints all of them") if path else {}
    return Settings(**{"name": unnamed, **file, **flags})


def rule(setting: Setting) -> str:
    """Return the description and the accepted values of a setting."""
    return "; ".join(part for part in (setting.rules.help, " or ".join(setting.rules.choices) or setting.rules.range) if part)


def _address(name: str, text: str) -> None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise SettingsError(f"{name} is {text!r}, which is no IP address") from None


def _cidr(text: str) -> None:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        raise SettingsError(f"ssh_from is {text!r}: write auto, or a range of addresses such as 203.0.113.7/32") from None
    widest = _WIDEST[network.version]
    if network.prefixlen < widest:
        raise SettingsError(
            f"ssh_from is {text}, {'the whole Internet' if network.prefixlen == 0 else 'much of the Internet'}: "
            f"name the addresses that you use, at most a /{widest}"
        )
