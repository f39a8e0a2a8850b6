"""Files that somebody else may have made: read within bounds, and deleted without leaving the directory they are in."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from pathlib import Path, PurePosixPath
from typing import IO, Any

RECORD_BYTES = 1 << 28  # the most of a JSON file of a run that is read: a plan of a million segments has some 60 MB


def open_plain(path: Path) -> IO[bytes]:
    """Open a regular file for reading. OSError for a link, a directory, a device or a pipe, none of which is waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def require_plain(*paths: Path) -> None:
    """That each of `paths` is a regular file, or absent. OSError for the first that is none, which is not opened."""
    for path in paths:
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise OSError(errno.EINVAL, "it is no regular file", str(path))
        except FileNotFoundError:
            continue


def read_plain(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes; OSError if it is none or larger."""
    with open_plain(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", str(path))
    return content


def read_json(path: Path, limit: int = RECORD_BYTES) -> Any:
    """The value of a JSON file. OSError as `read_plain`, ValueError if it is no JSON or nested too deeply."""
    return parse_json(read_plain(path, limit))


def parse_json(text: bytes) -> Any:
    """The value of a JSON text; ValueError if it is none or nested more deeply than the parser goes."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def inside(name: object) -> bool:
    """True if `name` is a plain relative path, which a terminal shows: it stays below the directory that it is looked up in."""
    if not isinstance(name, str) or not name.isprintable() or "\\" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name != "."


def delete(path: Path) -> None:
    """Delete a directory with its contents, or a file, as far as possible. A link goes, and its target stays."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        return
