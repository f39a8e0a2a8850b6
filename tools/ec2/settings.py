"""The configuration: one table of settings, from which come the TOML keys, the flags, the checks and the documentation."""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from psnode_ec2.errors import ConfigurationError

NAME = r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?"
_LEAST_PRICE = 0.0001
_WIDEST = {4: 8, 6: 16}  # ranges of addresses by version of IP: no network of one owner is larger
TYPE = r"[a-z0-9-]+\.[a-z0-9-]+"


def _option(
    default: Any,
    text: str,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    pattern: str | None = None,
    example: Any = None,
) -> Any:
    rules = {"help": text, "least": least, "most": most, "choices": choices, "pattern": pattern, "example": example}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=rules)
    return dataclasses.field(default=default, metadata=rules)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """One cluster. Every field is a TOML key and, with hyphens, a flag; money is in USD."""

    name: str = _option(
        "", "of the cluster: lower-case letters, digits and hyphens; part of every tag", pattern=NAME, example="atomo"
    )
    owner: str = _option(
        "",
        "whose cluster it is, a tag; default: the user, or role-NAME of the role, that the credentials belong to",
        pattern=r"[\w.@=+,-]{1,69}",
    )
    region: str = _option("", "AWS region; default: what AWS_REGION or the profile says", example="us-west-2")
    profile: str = _option("", "profile of the AWS configuration; default: as for every AWS tool")
    availability_zone: str = _option("", "the zone tried first; default: every zone that has the types", example="us-west-2b")
    fallback_zones: tuple[str, ...] = _option((), "zones tried when the first has no room; the whole cluster moves")
    n_workers: int = _option(2, "worker nodes; the master is one more", least=1, most=255)
    method: str = _option("on-demand", "how instances are bought", choices=("on-demand", "spot"))
    spot_price: float = _option(0.0, "the most to pay for a spot instance and hour; 0: up to the on-demand price", least=0)
    master_type: str = _option("m5.2xlarge", "instance type of the master", pattern=TYPE)
    worker_type: str = _option("m5.2xlarge", "instance type of the workers", pattern=TYPE)
    fallback_types: tuple[str, ...] = _option(
        (), "types tried, for all nodes, when no zone has room for the first ones", pattern=TYPE
    )
    image_id: str = _option(
        "ubuntu", "ubuntu: the newest LTS; deep-learning: AWS's newest with PyTorch and NVIDIA drivers; or your own ami-...",
        pattern=r"ubuntu|deep-learning|ami-[0-9a-f]{8,17}",
    )  # fmt: skip
    volume_gib: int = _option(50, "size of the encrypted root volume", least=8, most=16384)
    subnet_id: str = _option("", "launch in this subnet; default: the default subnet of the zone", pattern=r"subnet-[0-9a-f]+")
    placement_group: bool = _option(True, "put the nodes next to each other (a cluster placement group)")
    efa: bool = _option(False, "elastic fabric adapters; the types must have them and the image their driver")
    ssh_username: str = _option("ubuntu", "the user on the nodes", pattern=r"[a-z_][a-z0-9_-]{0,31}")
    path_to_keyfile: Path = _option(Path("~/.ssh/id_ed25519"), "your private key; it never leaves this machine")
    key_name: str = _option(
        "", "an EC2 key pair that belongs to path_to_keyfile; default: its public half is registered for this cluster"
    )
    ssh_from: str = _option("auto", "the addresses that may reach port 22, in CIDR form; auto: this machine's public one")
    connect: str = _option("public", "the address by which this machine reaches the nodes", choices=("public", "private"))
    nfs_ip_address: str = _option("", "an NFS or EFS server that all nodes mount", example="172.31.14.225")
    nfs_mount_point: str = _option("", "where they mount it", pattern=r"/[\w./-]+", example="/home/ubuntu/shared")
    nfs_export: str = _option("/", "what they mount of it", pattern=r"/[\w./-]*")
    max_instances: int = _option(9, "launch refuses to have more nodes than this", least=2, most=256)
    max_hourly_price: float = _option(
        10.0, "launch refuses a cluster that may cost more an hour, with its volumes and addresses", least=0
    )
    max_hours: int = _option(24, "every node ends itself after so many hours; 0: never", least=0, most=720)
    prices: Mapping[str, float] = _option(
        {},
        "on-demand prices an hour by type, and of gp3 for a GiB and a month, where the price list cannot be asked",
        example={"m5.2xlarge": 0.384, "gp3": 0.08},
    )
    package: str = _option(
        "",
        "what setup installs: a wheel, a checkout, or a pip requirement, also a URL; "
        "default: the checkout this tool is in, or psnode of its version",
    )
    constraints: Path | None = _option(
        None, "a constraints file of pip for what setup installs; default: constraints.txt of the checkout, if that is installed"
    )
    remote_dir: str = _option("psnode", "where everything lies on a node; relative to the home directory", pattern=r"[\w./-]+")
    remote_venv: str = _option(
        "",
        "the virtual environment on the nodes, relative to the home directory; default: .venv in remote_dir",
        pattern=r"[\w./-]+",
    )
    state_dir: Path | None = _option(None, "where host keys are kept; default: ~/.local/state/psnode-ec2/NAME")
    keep_dir: Path | None = _option(
        None, "where shutdown puts the newest checkpoint of the nodes before it ends them; default: kept in state_dir"
    )
    launch_deadline: int = _option(600, "seconds until all nodes must be running, and their host keys known", least=1)
    capacity_attempts: int = _option(3, "how often to go through zones and types before giving up", least=1, most=100)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))
        if not self.name:
            raise ConfigurationError("name is not set: give the cluster one, --name or name = in the file")
        if bool(self.nfs_ip_address) != bool(self.nfs_mount_point):
            raise ConfigurationError("nfs_ip_address and nfs_mount_point belong together: set both or none")
        if self.nfs_ip_address:
            _address("nfs_ip_address", self.nfs_ip_address)
        elif self.nfs_export != "/":
            raise ConfigurationError(f"nfs_export is {self.nfs_export} but nfs_ip_address is not set: set it, or drop nfs_export")
        if self.ssh_from != "auto":
            _cidr(self.ssh_from)
        if 0 < self.spot_price < _LEAST_PRICE:
            raise ConfigurationError(f"spot_price must be 0, for no limit of its own, or at least {_LEAST_PRICE:g} USD an hour")
        for name, price in self.prices.items():
            if price <= 0:
                raise ConfigurationError(f"prices: that of {name} is {price:g}: it must be more than 0 USD an hour")
        if self.spot_price and self.method != "spot":
            raise ConfigurationError(f"spot_price is {self.spot_price:g} but method is on-demand: set method to spot, or drop it")
        if self.n_workers + 1 > self.max_instances:
            from psnode_ec2.errors import CapError

            raise CapError(
                f"{self.n_workers} workers and a master are over max_instances = {self.max_instances}: raise it if you mean it"
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
    def venv(self) -> str:
        return self.remote_venv or f"{self.remote_dir}/.venv"


FIELDS = {field.name: field for field in dataclasses.fields(Settings)}


def load(path: Path | None, flags: Mapping[str, Any], unnamed: str = "") -> Settings:
    """The settings of the TOML file at `path`, if any, with `flags` over them. Raises ConfigurationError.

    `unnamed` is the name of a cluster that has none.
    """
    return Settings(**{"name": unnamed, **(from_file(path) if path else {}), **flags})


def from_file(path: Path) -> dict[str, Any]:
    """The values in a TOML file, typed. Raises ConfigurationError for unreadable files and for keys that no setting has."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--config {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--config {path} is no TOML: {' '.join(str(error).split())}") from error
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in FIELDS:
            raise ConfigurationError(f"unknown key {key!r} in {path}{nearest(name, FIELDS)}; `export config` prints all of them")
        found[name] = typed(name, value)
    return found


def typed(name: str, value: Any) -> Any:
    """`value`, from TOML or as the text of a flag, as the field `name` holds it. Raises ConfigurationError."""
    kind = str(FIELDS[name].type)
    text = value if isinstance(value, str) else None
    try:
        if kind.startswith("Mapping"):
            pairs = dict(part.split("=", 1) for part in text.split(",") if part) if text is not None else dict(value)
            return {str(key): _number(price) for key, price in pairs.items()}
        if kind.startswith("tuple"):
            parts = [part.strip() for part in text.split(",")] if text is not None else value
            if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
                raise ValueError
            return tuple(part for part in parts if part)
        if kind.startswith("Path"):
            return Path(_text(value))
        if kind == "bool":
            return _boolean(value)
        if kind == "int":
            return _whole(value)
        return _number(value) if kind == "float" else _text(value)
    except (ValueError, TypeError, AttributeError):
        nouns = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
        noun = nouns.get(kind, "a table of prices" if kind.startswith("Mapping") else "a list" if "tuple" in kind else "a path")
        raise ConfigurationError(f"{name} must be {noun}, not {value!r}") from None


def nearest(word: str, choices: Iterable[str]) -> str:
    """`; did you mean x?` for the choice closest to `word`, or nothing."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    rules, name = field.metadata, field.name
    if isinstance(value, int | float) and not isinstance(value, bool):
        least, most = rules["least"], rules["most"]
        if not (least is None or value >= least) or not (most is None or value <= most):
            bounds = f"at least {least:g}" if most is None else f"{least:g} to {most:g}"
            raise ConfigurationError(f"{name} must be {bounds}, not {value:g}")
    for part in value if isinstance(value, tuple) else (value,):
        if rules["choices"] and part not in rules["choices"]:
            raise ConfigurationError(
                f"{name} must be {' or '.join(rules['choices'])}, not {part!r}{nearest(part, rules['choices'])}"
            )
        if rules["pattern"] and part and not re.fullmatch(rules["pattern"], part):
            raise ConfigurationError(f"{name} is {part!r}, which it cannot be: {rules['help']}")


def _address(name: str, text: str) -> None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise ConfigurationError(f"{name} is {text!r}, which is no IP address") from None


def _cidr(text: str) -> None:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        raise ConfigurationError(f"ssh_from is {text!r}: write auto, or a range of addresses such as 203.0.113.7/32") from None
    widest = _WIDEST[network.version]
    if network.prefixlen < widest:
        raise ConfigurationError(
            f"ssh_from is {text}, {'the whole Internet' if network.prefixlen == 0 else 'much of the Internet'}: "
            f"name the addresses that you use, at most a /{widest}"
        )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool | float):
        raise TypeError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError
    return number


def _boolean(value: Any) -> bool:
    if value in (True, "true"):
        return True
    if value in (False, "false"):
        return False
    raise ValueError
