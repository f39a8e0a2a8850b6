"""The user's code on the nodes: a work tree that is packed once and unpacked on every node.

In a git work tree, git's rules determine the files, if git is installed.
"""

from __future__ import annotations

import fnmatch
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from psnode_ec2.cloud import progress
from psnode_ec2.cluster import counted
from psnode_ec2.copying import send_stream
from psnode_ec2.ec2_errors import SettingsError
from psnode_ec2.node_ssh import Access

CODE = "code"  # the folder in remote_dir that holds the code, and in which the job runs
_MOST_BYTES = 1 << 30
# files and folders that are useless on a node, at any depth
_NEVER = (".git", ".hg", ".svn", ".venv", "venv", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", "node_modules")
_SECRET = (
    ".env", ".env.*", ".envrc", ".netrc", ".pypirc", ".npmrc", ".git-credentials", ".aws", ".ssh", ".gnupg", ".kube", "*.pem",
    "*.key", "*.p12", "*.pfx", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "credentials", "credentials.json",
    "client_secret*.json",
)  # fmt: skip
_HARMLESS = ("*.example", "*.sample", "*.template")
_PRIVATE = b"PRIVATE KEY-----"
_HEAD = 256  # the marker of a private key is in this many bytes at the beginning of a file


def pack(tree: Path, archive: Path, keyfile: Path) -> None:
    """Write the files of `tree` for the nodes to the tar archive `archive`. Files that look like secrets are left out and named.

    Raises SettingsError.
    """
    if not tree.is_dir():
        raise SettingsError(f"--sync {tree} is no folder: name the one that holds your code")
    names, secret = chosen(tree, keyfile)
    size = sum((tree / name).lstat().st_size for name in names)
    if size > _MOST_BYTES:
        largest = max(names, key=lambda name: (tree / name).lstat().st_size)
        raise SettingsError(
            f"--sync {tree} is {size / 1e9:.1f} GB in {counted(len(names), 'file')}, {largest} the largest: put data on "
            "the nodes with put or a shared directory, and name them in .gitignore"
        )
    try:
        with tarfile.open(archive, "w") as tar:
            for name in names:
                tar.add(tree / name, f"./{name}", recursive=False)
    except OSError as error:
        raise SettingsError(f"{error.filename or tree} cannot be read: {error.strerror or error}") from error
    if secret:
        shown = ", ".join(secret[:5]) + (f" and {len(secret) - 5} more" if len(secret) > 5 else "")
        progress(f"left out, for they look like secrets: {shown}")
    progress(f"{tree}: {counted(len(names), 'file')}, {size / 1e6:.1f} MB")


def chosen(tree: Path, keyfile: Path) -> tuple[list[str], list[str]]:
    """Return the files and links to copy, sorted, and the files that look like secrets.

    In a git work tree, the files to copy are those that git tracks or does not ignore. Elsewhere they are all files except
    environments and caches.
    """
    taken, secret = list[str](), list[str]()
    for name in sorted(set(_from_git(tree) if _is_tracked(tree) else _all(tree))):
        path = tree / name
        if any(part in _NEVER for part in Path(name).parts):
            continue
        if _is_secret(path, name, keyfile):
            secret.append(name)
        elif path.is_symlink() and not _stays(path, tree):
            progress(f"left out, for it leads out of {tree}: {name}")
        elif path.is_symlink() or path.is_file():
            taken.append(name)
    return taken, secret


def put_code(way: Access, archive: Path) -> None:
    """Unpack the archive on all nodes. Delete files that came from an earlier archive and are not in this one; all others stay.

    Raises RemoteError, with code 2 if a job runs on the nodes.
    """
    if way.dry_run:
        for node in way.nodes:
            click.echo(f"would unpack {archive} to {way.target(node)}:{way.settings.remote_dir}/{CODE}")
        return
    arguments = (way.settings.remote_dir, CODE)
    with archive.open("rb") as file:
        content = file.read()
    # the master first: it refuses the code while a job runs
    others = [node for node in way.nodes if node is not way.master]
    send_stream(way, way.master, "receive_code.sh", arguments, io.BytesIO(content))
    way.children.map(lambda node: send_stream(way, node, "receive_code.sh", arguments, io.BytesIO(content)), others)


def _is_tracked(tree: Path) -> bool:
    return _git(tree, "rev-parse", "--is-inside-work-tree").strip() == b"true"


def _from_git(tree: Path, prefix: str = "") -> Iterator[str]:
    """Yield the names of files below `tree` that git tracks or does not ignore, including those of submodules."""
    for raw in _git(tree, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split(b"\0"):
        name = os.fsdecode(raw).rstrip("/")
        path = tree / name
        if name and path.is_dir() and not path.is_symlink():
            yield from _from_git(path, f"{prefix}{name}/") if (path / ".git").exists() else ()
        elif name and (path.is_symlink() or path.exists()):  # otherwise the file was deleted
            yield prefix + name


def _git(tree: Path, *words: str) -> bytes:
    """Return the output of a git command; empty if it fails or git is missing."""
    try:
        done = subprocess.run(["git", "-C", tree, *words], stdin=subprocess.DEVNULL, capture_output=True)
    except FileNotFoundError:
        return b""
    return done.stdout if done.returncode == 0 else b""


def _all(tree: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(tree):
        linked = [name for name in folders if Path(folder, name).is_symlink()]
        folders[:] = [name for name in folders if name not in _NEVER and name not in linked]
        for name in (*files, *linked):
            yield os.path.relpath(os.path.join(folder, name), tree)


def _is_secret(path: Path, name: str, keyfile: Path) -> bool:
    if any(_fits(part, _SECRET) and not _fits(part, _HARMLESS) for part in Path(name).parts):
        return True
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return _PRIVATE in file.read(_HEAD) or (keyfile.exists() and path.samefile(keyfile))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in patterns)


def _stays(link: Path, tree: Path) -> bool:
    return not os.path.isabs(os.readlink(link)) and link.resolve().is_relative_to(tree.resolve())
