"""Copies of files and folders to a node and back, as tar streams over ssh. A repeated copy gives the same result.

By default, a copied folder becomes the target itself. Files that exist in the target but not in the copied folder stay; all
others are overwritten. A file is copied into the target if the target is a folder. If the target is empty, . or .., or ends
with a slash, the file or folder keeps its name and is placed in the target.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

import click

from psnode_ec2.cluster import Node
from psnode_ec2.ec2_errors import SettingsError, failure
from psnode_ec2.node_ssh import Access


class _Input(io.RawIOBase):
    """Standard input of a process that may exit before it has read everything.

    Only the first failed write raises an error; later writes are ignored.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._broken = False

    def write(self, data: Any, /) -> int:
        try:
            return len(data) if self._broken else self._pipe.write(data)
        except BrokenPipeError:
            self._broken = True
            raise


def put(way: Access, nodes: Sequence[Node], local: Path, remote: str) -> None:
    """Copy a file or a folder to `remote` on each of `nodes`. Raises RemoteError and SettingsError."""
    if way.dry_run:
        for node in nodes:
            click.echo(f"would copy {local} to {way.target(node)}:{remote}")
    else:
        way.children.map(lambda node: send(way, node, local, remote), nodes)


def get(way: Access, node: Node, remote: str, local: str) -> None:
    """Copy the file or folder `remote` from a node to `local`. Raises RemoteError and SettingsError."""
    if way.dry_run:
        click.echo(f"would copy {way.target(node)}:{remote} to {local}")
    else:
        fetch(way, node, remote, local)


def send(way: Access, node: Node, local: Path, remote: str) -> None:
    """Copy `local` to `remote` on `node`. Raises RemoteError, or SettingsError if `local` cannot be read."""
    name, folder = local.resolve().name, local.is_dir()
    if folder and (loop := _loop(local)):
        raise SettingsError(f"{loop} is a link back to a folder that it is in, so that a copy has no end: remove it")
    key = way.settings.keyfile

    def taken(member: tarfile.TarInfo) -> tarfile.TarInfo:
        path = local / member.name if folder else local
        if member.isreg() and path.samefile(key):
            raise SettingsError(f"{path} is your private key, {key}, which stays on this machine: leave it out")
        return member

    line = way.line(node, _command("receive.sh", _from_home(remote), name, "folder" if folder else "file"))
    with tempfile.TemporaryFile() as stderr:
        with way.children.started(line, stdin=subprocess.PIPE, stderr=stderr) as process:
            assert process.stdin is not None
            try:
                with tarfile.open(fileobj=_Input(process.stdin), mode="w|", dereference=True) as archive:
                    archive.add(local, "." if folder else name, filter=taken)
            except BrokenPipeError:
                pass  # the process has given its reason on stderr
            except OSError as error:
                raise SettingsError(f"{error.filename or local} cannot be read: {error.strerror or error}") from error
            finally:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        if process.returncode != 0:
            raise failure(node, "put", process.returncode, _text(stderr))


def send_stream(way: Access, node: Node, script: str, arguments: Sequence[str], content: IO[bytes]) -> None:
    """Run a script of this package on `node` with `content` as its standard input. Raises RemoteError."""
    line = way.line(node, _command(script, *arguments))
    with tempfile.TemporaryFile() as stderr:
        with way.children.started(line, stdin=subprocess.PIPE, stderr=stderr) as process:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the process has given its reason on stderr
                shutil.copyfileobj(content, process.stdin)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        if process.returncode != 0:
            raise failure(node, script, process.returncode, _text(stderr))


def _loop(folder: Path, within: frozenset[tuple[int, int]] = frozenset()) -> Path | None:
    """Return the first link at or below `folder` that leads back to a folder in which it lies; None if there is no such link.

    `within`: device and inode of `folder`'s parents.
    """
    with contextlib.suppress(OSError):  # an unreadable file is reported when it is copied
        status = folder.stat()
        if (status.st_dev, status.st_ino) in within:
            return folder
        inner = within | {(status.st_dev, status.st_ino)}
        loops = (_loop(Path(entry.path), inner) for entry in sorted(os.scandir(folder), key=_name) if entry.is_dir())
        return next((loop for loop in loops if loop), None)
    return None


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def fetch(way: Access, node: Node, remote: str, local: str, *names: str) -> None:
    """Copy `remote` on `node` to `local`. If `names` are given, `remote` is a folder, of which only these entries are copied.

    Raises RemoteError, or SettingsError if `local` cannot be written.
    """
    remote = _from_home(remote)
    name, damage = PurePosixPath(remote).name or node.name, ""
    line = way.line(node, _command("give.sh", remote or ".", *(f"./{each}" for each in names)))
    with tempfile.TemporaryFile() as stderr:
        with way.children.started(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr) as process:
            assert process.stdout is not None
            try:
                _unpack(process.stdout, local, name)
            except tarfile.TarError as error:
                damage = f"what came was no whole archive: {error}"
            except OSError as error:
                raise SettingsError(f"{error.filename or local} cannot be written: {error.strerror or error}") from error
            finally:
                process.stdout.close()
        if process.returncode != 0 or damage:
            raise failure(node, "get", process.returncode, _text(stderr) or damage)


def _unpack(stream: IO[bytes], local: str, name: str) -> None:
    """Unpack the archive that give.sh prints to `stream`.

    Raises tarfile.TarError if the archive has links, devices, or paths outside its folder.
    """
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        target = None
        for member in archive:
            parts = PurePosixPath(member.name).parts
            if target is None:
                folder = not parts
                keeps = local.endswith("/") or Path(local).name in ("", "..") or (not folder and Path(local).is_dir())
                target = Path(local) / name if keeps else Path(local)
            if ".." in parts or member.name.startswith("/") or not (member.isdir() or member.isreg()):
                raise tarfile.TarError(f"{member.name} cannot be taken")
            path = target.joinpath(*parts) if folder else target
            path.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            if content is None:
                path.mkdir(exist_ok=True)
            else:
                with path.open("wb") as file:
                    shutil.copyfileobj(content, file)
                path.chmod(member.mode & 0o777)
        while stream.read(1 << 16):  # padding of the archive
            pass


def _command(script: str, *arguments: str) -> str:
    return shlex.join(["bash", "-c", Path(__file__).with_name(script).read_text(), script, *arguments])


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _from_home(remote: str) -> str:
    """Return `remote` as a path relative to the home directory, in which a node's shell starts."""
    return "" if remote == "~" else remote.removeprefix("~/")
