"""Compiled kernels are compiled again when a function that they call changes, not only when they themselves change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import pytest

import psnode
from psnode.config.train_settings import DEFAULT_SCHEME

ROOT = Path(psnode.__file__).resolve().parents[1]
_DRAWS = """
import os, sys
import numba, numpy as np

def draw(path, cache):
    sys.path.insert(0, path)
    if cache:
        numba.config.CACHE_DIR = cache
    from psnode.codecs.kernels.trits import pack
    packed = np.zeros(1, np.uint8)
    pack(np.array([1, 2, 0, 0, 0], np.uint8), packed)
    print(int(packed[0]), sum(pack.stats.cache_hits.values()), flush=True)

for line in sys.stdin:
    assert not any(name.startswith("psnode") for name in sys.modules)
    if not (child := os.fork()):
        draw(*line.rstrip("\\n").split("\\t"))
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("failed", flush=True)
"""

Draw = Callable[..., list[str]]


@pytest.fixture(scope="module")
def draw() -> Iterator[Draw]:
    """Return `draw(cache, path)`, which calls a kernel in a new process. It returns the result, and the number of kernels
    taken from the cache.

    `path` is the folder that contains psnode. `cache` is the directory of the cache; None means the default. The processes
    are forks of one process that has imported Numba, but nothing of psnode.
    """
    command = [sys.executable, "-c", _DRAWS]
    with subprocess.Popen(command, env={}, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        requests, answers = server.stdin, server.stdout

        def draw(cache: Path | None, path: Path = ROOT) -> list[str]:
            print(path, cache or "", sep="\t", file=requests, flush=True)
            return answers.readline().split()

        yield draw
        requests.close()
    assert server.returncode == 0


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory, draw: Draw) -> Path:
    """Return a directory in which the kernel is cached."""
    folder = tmp_path_factory.mktemp("cached") / "cache"
    (folder / "kernels").mkdir(parents=True)
    assert draw(folder) == ["7", "0"]
    return folder


@pytest.mark.parametrize(
    ("mode", "above", "hits"), [(0o755, 0o755, 1), (0o777, 0o755, 0), (0o1777, 0o755, 0), (0o755, 0o777, 0), (0o755, 0o1777, 1)]
)
def test_a_cache_that_others_may_write_is_not_executed(
    mode: int, above: int, hits: int, cached: Path, tmp_path: Path, draw: Draw
) -> None:
    """Check that kernels are compiled again if others may write to the cache's directory for a module's kernels, or to the
    directory above, unless the latter is sticky.
    """
    folder = tmp_path / "cache"
    shutil.copytree(cached, folder)
    for place in (place for place in folder.rglob("*") if place.is_dir()):
        place.chmod(mode)
    folder.chmod(above)
    assert draw(folder) == ["7", str(hits)]


def test_a_cache_of_earlier_sources_is_not_even_unpickled(cached: Path, tmp_path: Path, draw: Draw) -> None:
    """Check that the index of a cache made from earlier sources is not unpickled: it names types of kernel arguments whose
    modules may no longer exist.
    """
    folder = tmp_path / "cache"
    shutil.copytree(cached, folder)
    (index,) = folder.rglob("trits.pack-*.nbi")
    # a pickled version, then a pickled object of such a type
    index.write_text(f"V{numba.__version__}\n.cpsnode.codecs.gone\nArguments\n.")
    assert [draw(folder), draw(folder)] == [["7", "0"], ["7", "1"]]


def test_what_is_cached_counts_for_the_sources_of_all_kernels(tmp_path: Path, draw: Draw) -> None:
    """Check that a second process uses the first one's kernels, and that a third process compiles them again after rng.py
    has changed, in a copy of the package.
    """
    package = tmp_path / "psnode"
    shutil.copytree(Path(psnode.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    assert [draw(None, tmp_path), draw(None, tmp_path)] == [["7", "0"], ["7", "1"]]
    with (package / "codecs" / "rng.py").open("a") as source:
        source.write("\n")
    assert [draw(None, tmp_path), draw(None, tmp_path)] == [["7", "0"], ["7", "1"]]


_NOBODY = 41234


def nowhere(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return a command prefix and an environment for a user without a name or a home, and without a directory to which Numba
    can write.
    """
    limits = ["--clear-groups", "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    words = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", *limits] if os.geteuid() == 0 else []
    here = os.pathsep.join((str(Path(sys.executable).parent), os.defpath))
    return words, {
        "HOME": "/nonexistent",
        "NUMBA_CACHE_DIR": "/proc/none",
        "PATH": here,
        "TMPDIR": str(folder),
        "PYTHONPATH": str(ROOT),
    }


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="no setpriv")
def test_every_command_works_where_no_kernel_can_be_kept_and_says_what_to_set(tmp_path: Path) -> None:
    """Check that every command works with a copy of the package that is not writable and has bytecode but no kernels, as in
    a container image.
    """
    package = tmp_path / "image" / "psnode"
    shutil.copytree(Path(psnode.__file__).parent, package, ignore=shutil.ignore_patterns("*.nb[ci]"))  # kernels, not bytecode
    mine = tmp_path / "mine"
    mine.mkdir()
    for place in (package, *package.rglob("*")):
        place.chmod(0o555 if place.is_dir() else 0o444)
    if os.geteuid() == 0:
        os.chown(mine, _NOBODY, _NOBODY)
    words, environment = nowhere(mine)
    environment["PYTHONPATH"] = str(package.parent)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*words, sys.executable, "-m", "psnode", *arguments]
        return subprocess.run(command, cwd=mine, env=environment, capture_output=True, text=True)

    try:
        train = "train --local 1 --network FC --scheme dense --max-steps 2 --no-tensorboard --train-dir run"
        told = run(*train.split())
        assert told.returncode == 0, told.stderr
        assert len([line for line in told.stderr.splitlines() if "NUMBA_CACHE_DIR" in line]) == 1
        assert run("codecs", "qsgd").returncode == 0
        doctor = run("doctor", "--json")  # mpirun starts its job of two ranks, as for launch
        found = {each["what"]: each for each in json.loads(doctor.stdout)}
        assert (found["kernel cache"]["state"], "NUMBA_CACHE_DIR" in found["kernel cache"]["remedy"]) == ("optional", True)
        assert [each for each in found.values() if each["state"] == "missing"] == []
        assert (doctor.returncode, found["codecs"]["detail"].split()[2]) == (0, DEFAULT_SCHEME)
        assert not [path.name for path in mine.iterdir() if path.name.startswith(("~", "psnode", "numba"))]
    finally:
        for place in (package, *package.rglob("*")):
            place.chmod(0o755 if place.is_dir() else 0o644)
