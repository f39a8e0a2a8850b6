"""Compiled kernels of a tree that mutants.py changes. Kernels that cannot contain code of the changed file stay compiled.

psnode compiles all kernels anew when the source of any of them changes (psnode/codecs/kernels/jit.py), which takes minutes. But
a mutant affects only its own module and modules that import it, directly or through others. The caches of these modules are set
aside while the mutant is in place, and jit.py keeps all other caches. A function without a decorator is never compiled, so a
mutant in such a function affects only its own module.
"""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Set
from pathlib import Path

JIT = "psnode/codecs/kernels/jit.py"
_DIGEST = "from psnode.codecs.kernels.jit import sources; print(sources())"
_INSTRUCTIONS = b"kernels.llvm.", b"llvmlite"
_PATCH = "\n\ndef sources() -> str:\n    return {digest!r}\n"


def reached(root: Path, path: str) -> set[str]:
    """Return the module in `path`, and all modules of psnode that import it when they are loaded, directly or through others."""
    imports = {file.relative_to(root).as_posix(): _imports(root, file) for file in (root / "psnode").rglob("*.py")}
    found = {path}
    while more := {name for name, others in imports.items() if others & found} - found:
        found |= more
    return found


def is_interpreted(source: bytes, line: int) -> bool:
    """Return True if `line` is in a function that has no decorator, and whose enclosing functions have none either.

    The result is always False for modules with LLVM instructions, since their functions become machine code even without a
    decorator.
    """
    if any(word in source for word in _INSTRUCTIONS):
        return False
    around = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return bool(around) and not any(node.decorator_list for node in around)


def _imports(root: Path, file: Path) -> set[str]:
    names: list[str] = []
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {found for name in names if (found := _file_of(root, name)) is not None}


def _file_of(root: Path, name: str) -> str | None:
    """Return the file of the module `name`, or of the module that defines `name`. None if this is outside the tree."""
    while name:
        for file in (f"{name.replace('.', '/')}.py", f"{name.replace('.', '/')}/__init__.py"):
            if (root / file).exists():
                return file
        name = name.rpartition(".")[0]
    return None


def _caches(root: Path, modules: Set[str]) -> list[Path]:
    """Return Numba's cache files of `modules`."""
    places = [root / module for module in sorted(modules)]
    return [found for place in places for found in (place.parent / "__pycache__").glob(f"{place.stem}.*.nb[ci]")]


class Compiled:
    """The caches of the kernels in the tree `root`, which are valid for the present sources."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._digest = ""

    @contextlib.contextmanager
    def without(self, path: str, line: int) -> Iterator[None]:
        """Set aside the caches of kernels that may contain `line` of `path`, so that these kernels are compiled anew.

        Restore the caches at exit.
        """
        interpreted = is_interpreted((self._root / path).read_bytes(), line)
        modules = {path} if interpreted else reached(self._root, path)
        with tempfile.TemporaryDirectory(prefix="aside-", dir=self._root.parent) as folder, self._as_now(path):
            aside = [(cache, Path(folder) / str(number)) for number, cache in enumerate(_caches(self._root, modules))]
            for cache, place in aside:
                cache.rename(place)
            try:
                yield
            finally:
                for cache in _caches(self._root, modules):
                    cache.unlink()
                for cache, place in aside:
                    place.rename(cache)

    @contextlib.contextmanager
    def _as_now(self, path: str) -> Iterator[None]:
        """Keep caches valid inside the context, although the source in `path` changes.

        The caches were written for the present sources.
        """
        jit = self._root / JIT
        if path == JIT or not jit.exists():
            yield
            return
        if not self._digest:
            command = [sys.executable, "-c", _DIGEST]
            self._digest = subprocess.run(command, cwd=self._root, capture_output=True, text=True, check=True).stdout.strip()
        source, stamp = jit.read_bytes(), jit.stat()
        jit.write_bytes(source + _PATCH.format(digest=self._digest).encode())
        try:
            yield
        finally:
            jit.write_bytes(source)
            os.utime(jit, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
