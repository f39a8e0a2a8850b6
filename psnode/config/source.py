"""The source of this psnode, as a digest: the same for two copies of one commit, wherever they lie."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import psnode


@functools.cache
def source() -> str:
    """The digest of the psnode that this process runs."""
    return digest(Path(str(psnode.__file__)).parent)


def digest(package: Path) -> str:
    """Eight hexadecimal digits of names and texts of all Python files below `package`, whatever ends their lines.

    Hidden files are none of a package's: editors and file systems leave such beside others.
    """
    found = hashlib.blake2b(digest_size=4)
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    for name, path in sorted(files.items()):
        if not any(part.startswith(".") for part in name.split("/")):
            text = path.read_bytes().replace(b"\r\n", b"\n")
            found.update(f"{name} {len(text)}\n".encode(errors="surrogateescape") + text)
    return found.hexdigest()


def told(version: str, its_source: str) -> str:
    """A version and a source, for people."""
    return f"{version} ({its_source})" if its_source else f"{version} (of an earlier commit)"
