"""Setup: let the master log in to all nodes, mount the shared directory, and install psnode."""

from __future__ import annotations

import importlib.metadata
import ipaddress
import os
import re
import shutil
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import click

from psnode_ec2.cloud import progress
from psnode_ec2.cluster import Node, counted
from psnode_ec2.copying import put
from psnode_ec2.ec2_errors import Ec2Error, SettingsError
from psnode_ec2.hostkeys import for_addresses
from psnode_ec2.node_ssh import Access
from psnode_ec2.settings import Settings

_CHECKOUT = Path(__file__).resolve().parents[2]
SOURCES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "psnode", "psnode_ec2")
_EPOCH = 315532800  # 1980, the first year that zip files can store
# a URL, or a name with extras and versions or "@ URL"; pip interprets the details
_REQUIREMENT = re.compile(r"\S+://\S+|[A-Za-z0-9][\w.-]*\s*(\[[^\]]*\])?\s*([=<>!~@].*)?")
_SECRET = re.compile(r"(?P<git>git\+)?(?P<scheme>https?://)(?P<who>[^/\s]+)@(?P<host>[^/\s]+)")
_FORWARDED = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")


def prepare(way: Access, package: str) -> None:
    """Bring all nodes to the state that `run` needs. This is safe to repeat. `package`: the value that `package_of` yields.

    Raises RemoteError with the message of the first node that fails.
    """
    settings = way.settings
    way.reach()
    progress(f"{counted(len(way.nodes), 'node')} let us in")
    public = way.script(way.master, "pair.sh").strip()
    known = "" if way.dry_run else for_addresses(way.known_hosts, way.nodes)
    way.everywhere(way.nodes, "trust.sh", public, known, *(node.private_address for node in way.nodes))
    progress("the master may log in to all nodes")
    if settings.nfs_ip_address:
        mount = (str(ipaddress.ip_address(settings.nfs_ip_address)), settings.nfs_export, settings.nfs_mount_point)
        way.everywhere(way.nodes, "mount.sh", *mount)
        progress(f"{settings.nfs_mount_point} is mounted")
    way.everywhere(way.nodes, "make_folders.sh", settings.remote_dir)
    put(way, way.nodes, Path(__file__).with_name("watch_interruption.py"), f"{settings.remote_dir}/")
    what = package
    if is_path(package):
        what = f"{settings.remote_dir}/{Path(package).name}"
        put(way, way.nodes, Path(package), what)
    version = install(way, what, constraints_of(settings))
    if not way.dry_run:
        progress(f"every node has {version}")


def install(way: Access, what: str, constraints: Path | None) -> str:
    """Install the package `what` on all nodes, with the versions that `constraints` allow. Return psnode's version.

    If some nodes already have psnode, new nodes get the same versions of all packages as these nodes.
    """
    before = way.everywhere(way.nodes, "versions.sh", way.settings.venv)
    ready = [node for node, text in zip(way.nodes, before, strict=True) if text]
    new = [node for node in way.nodes if node not in ready]
    versions = _install(way, ready or new, what, constraints)
    if ready and new:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "versions.txt"
            path.write_text(way.script(ready[0], "versions.sh", way.settings.venv))
            progress(f"{len(new)} new nodes get the versions of {ready[0].name}")
            versions += _install(way, new, what, path)
    return versions[0].strip()


def _install(way: Access, nodes: Sequence[Node], what: str, constraints: Path | None) -> list[str]:
    what, secret = without_secrets(what)
    wanted = {"PSNODE_VENV": way.settings.venv, "PSNODE_MPI": "system" if way.settings.efa else "wheel"}
    if way.settings.checkpoints:
        wanted["PSNODE_EXTRAS"] = "ec2"  # the extra with boto3
    if constraints:
        wanted["PSNODE_CONSTRAINTS"] = f"{way.settings.remote_dir}/{constraints.name}"
        put(way, nodes, constraints, wanted["PSNODE_CONSTRAINTS"])
    wanted |= {name: os.environ[name] for name in _FORWARDED if name in os.environ} | secret
    return way.everywhere(nodes, "pre_run.sh", what, env=wanted)


def without_secrets(package: str) -> tuple[str, dict[str, str]]:
    """Return `package` without user, password or token in its URL, and environment variables with which git sends these.

    All users of a machine can read the command lines of pip and git, but not their environment. Raises SettingsError for a URL
    with a secret that pip fetches without git, since pip has no such variables.
    """
    found = _SECRET.search(package)
    if found is None:
        return package, {}
    if not found["git"]:
        raise SettingsError(
            "package has a password or token in its URL, which everybody on a node could read: name a file on this machine, "
            "a git+https URL, or an index in PIP_INDEX_URL"
        )
    who = unquote(found["who"])
    header = b64encode((who if ":" in who else f"{who}:").encode()).decode()
    key = f"http.{found['scheme']}{found['host']}/.extraHeader"
    variables = {"COUNT": "1", "KEY_0": key, "VALUE_0": f"Authorization: Basic {header}"}
    bare = package[: found.start("who")] + package[found.end("who") + 1 :]
    return bare, {f"GIT_CONFIG_{name}": value for name, value in variables.items()}


def constraints_of(settings: Settings) -> Path | None:
    """Return the constraints file for pip: the configured file, otherwise that of the checkout that will be installed.

    None if neither exists. Raises SettingsError if the configured file does not exist.
    """
    if settings.constraints:
        path = settings.constraints.expanduser()
        if not path.is_file():
            raise SettingsError(f"constraints {path} is no file: name one with NAME==VERSION a line, or leave it out")
        return path
    package = settings.package
    folder = Path(package).expanduser() if package else _CHECKOUT
    path = folder / "constraints.txt"
    return path if (not package or is_path(package)) and folder.is_dir() and path.is_file() else None


def version() -> str:
    """Return the version of this tool, which equals psnode's version."""
    try:
        return importlib.metadata.version("psnode")
    except importlib.metadata.PackageNotFoundError:  # the tool runs from a checkout that is not installed
        text = (_CHECKOUT / "psnode" / "__init__.py").read_text()
        return str(re.findall(r'^__version__ = "(.+)"$', text, re.M)[0])


@contextmanager
def package_of(package: str, *, dry_run: bool) -> Iterator[str]:
    """Yield the package to install: the path of a wheel on this machine, or a pip requirement.

    If `package` is a folder, a wheel is built from it; a requirement is yielded unchanged. The default is the checkout that
    contains this file or, if this tool is installed, psnode in the same version.
    """
    if not package and not (_CHECKOUT / "setup.cfg").is_file():
        package = f"psnode=={version()}"
    path = Path(package).expanduser() if package else _CHECKOUT
    if package and not is_path(package):
        shown, _ = without_secrets(package)
        if not _REQUIREMENT.fullmatch(package):
            raise SettingsError(f"package {shown!r} is no pip requirement: name a wheel, a checkout (./psnode), or psnode==...")
        yield package
    elif not path.exists():
        raise SettingsError(f"package {package} does not exist: name a wheel, a checkout, or a pip requirement")
    elif not path.is_dir():
        yield str(path)
    elif dry_run:
        click.echo(f"would build a wheel of {path}")
        yield str(path / "psnode-VERSION-py3-none-any.whl")
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield str(_build(path, Path(folder)))


def is_path(package: str) -> bool:
    """Return True if `package` is a local path, such as ., a/b or a.whl, and not a URL. No pip requirement has this form."""
    return "://" not in package and (package in (".", "..", "~") or "/" in package or package.endswith(".whl"))


def _build(checkout: Path, folder: Path) -> Path:
    """Return a wheel of `checkout`, built from a copy, so that nothing is written into the checkout."""
    if not (checkout / "setup.cfg").is_file():
        raise SettingsError(f"{checkout} is no checkout of psnode: set package to one, or to a wheel or a requirement")
    for name in SOURCES:
        source, target = checkout / name, folder / "source" / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.is_file():
            shutil.copy(source, target)
    progress("building a wheel")
    line = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder / "dist"), str(folder / "source")]
    # an unchanged checkout gives the same wheel, byte for byte; nodes that have this wheel need no installation
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(_EPOCH)}
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)
    wheels = sorted((folder / "dist").glob("*.whl"))
    if done.returncode != 0 or not wheels:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Ec2Error(f"the wheel of {checkout} cannot be built ({last}): build one, and set package to it")
    return wheels[0]
