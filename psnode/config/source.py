"""A digest of psnode's source, equal for two copies of the same commit at any path."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import psnode


@functools.cache
def source() -> str:
    """Return the digest of the psnode that runs in this process."""
    return digest(Path(str(psnode.__file__)).parent)


def digest(package: Path) -> str:
    """Return a digest (eight hexadecimal digits) of the names and texts of all Python files below `package`.

    Line endings do not matter. Hidden files are left out, because editors and file systems add such files.
    """
    found = hashlib.blake2b(digest_size=4)
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    for name, path in sorted(files.items()):
        if not any(part.startswith(".") for part in name.split("/")):
            text = path.read_bytes().replace(b"\r\n", b"\n")
            found.update(f"{name} {len(text)}\n".encode(errors="surrogateescape") + text)
    return found.hexdigest()


def told(version: str, its_source: str) -> str:
    """Return a version, with the digest of its source in parentheses, as text for people."""
    return f"{version} ({its_source})" if its_source else f"{version} (of an earlier commit)"
