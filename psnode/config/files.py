"""Files from untrusted sources: functions that read only regular files up to a size limit, and delete without following links."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from pathlib import Path, PurePosixPath
from typing import IO, Any

RECORD_BYTES = 1 << 28  # size limit for JSON files of a run; a plan of a million segments has about 60 MB


def open_plain(path: Path) -> IO[bytes]:
    """Open a regular file for reading.

    Raises OSError for a link, a directory, a device or a pipe. Does not wait for the other end of a pipe.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def require_plain(*paths: Path) -> None:
    """Raise OSError for the first of `paths` that exists and is not a regular file. No path is opened."""
    for path in paths:
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        except FileNotFoundError:
            continue


def read_plain(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes. Raises OSError like `open_plain`, and for a larger file."""
    with open_plain(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", str(path))
    return content


def read_json(path: Path, limit: int = RECORD_BYTES) -> Any:
    """Return the value of a JSON file.

    Raises OSError like `read_plain`, and ValueError if the content is not JSON or is nested too deeply.
    """
    return parse_json(read_plain(path, limit))


def parse_json(text: bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError if it is not JSON, or is nested more deeply than the parser supports."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def inside(name: object) -> bool:
    """Return True if `name` is a plain, printable relative path that cannot lead out of its directory."""
    if not isinstance(name, str) or not name.isprintable() or "\\" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name != "."


def delete(path: Path) -> None:
    """Delete a directory with its contents, or a file, as far as possible. If `path` is a link, its target is not deleted."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        return
