"""The source of this psnode as a digest, which is the same for two copies of one commit in any place."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import psnode


@functools.cache
def source() -> str:
    """Return the digest of the psnode that this process runs."""
    return digest(Path(str(psnode.__file__)).parent)


def digest(package: Path) -> str:
    """Return eight hexadecimal digits of the names and texts of all Python files below `package`, independent of line endings.

    Hidden files are left out: editors and file systems put such files next to others.
    """
    found = hashlib.blake2b(digest_size=4)
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    for name, path in sorted(files.items()):
        if not any(part.startswith(".") for part in name.split("/")):
            text = path.read_bytes().replace(b"\r\n", b"\n")
            found.update(f"{name} {len(text)}\n".encode(errors="surrogateescape") + text)
    return found.hexdigest()


def told(version: str, its_source: str) -> str:
    """Return a version and a source as text for people."""
    return f"{version} ({its_source})" if its_source else f"{version} (of an earlier commit)"
