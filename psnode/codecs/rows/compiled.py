"""Import of generated text as a module. The text is a file in a directory of this user, so that Numba can cache its kernels.

The directory is psnode_rows in NUMBA_CACHE_DIR, or else psnode/rows in the user's cache directory. The file name contains a
digest of the text, and the file is rewritten if its content differs. If other users may write to the directory, a temporary
directory of this process is used instead.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import cast

import xxhash

from psnode.codecs.kernels.jit import open_to_others
from psnode.codecs.rows.coder import SumFunctions


@cache
def compiled(text: str) -> SumFunctions:
    """Return the kernels of the module whose source is `text`. Each kernel is compiled when it is first called."""
    name = f"psnode_rows_{xxhash.xxh3_128_hexdigest(text.encode())}"
    path = directory() / f"{name}.py"
    if not path.is_file() or path.read_text() != text:
        write_whole(path, text.encode())
    return cast(SumFunctions, _imported(name, path))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: other processes see either the whole content or no file."""
    handle, written = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(written).replace(path)


def _imported(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@cache
def directory() -> Path:
    """Return the directory of generated modules. Only this user and root can write to it."""
    try:
        place = _wanted()
        place.mkdir(parents=True, exist_ok=True, mode=0o755)
        with tempfile.TemporaryFile(dir=place):
            if not open_to_others(place, Path(__file__)):
                return place
    except (OSError, RuntimeError):  # RuntimeError: the user has no home directory
        pass
    return _of_this_process()


def _wanted() -> Path:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return Path(chosen) / "psnode_rows"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "psnode" / "rows"


def _of_this_process() -> Path:
    """Return a temporary directory that is deleted when this process ends."""
    made = Path(tempfile.mkdtemp(prefix="psnode_rows_"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
