"""The table of stages compared with the existing modules, and the cost of importing the table."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import psnode.codecs
from psnode.codecs import Codec, available, get_codec, table
from psnode.codecs.chain import Chain
from psnode.codecs.stages import Lossless
from psnode.config.schemes import NAMES
from psnode.errors import CodecSpecError

ROOT = Path(__file__).resolve().parents[2]
STAGES = table.CODECS | table.LOSSLESS | table.WRAPPERS


def concrete_classes() -> set[type]:
    """Return every codec and lossless stage that a module of psnode.codecs defines."""
    found = set()
    for module in pkgutil.walk_packages(psnode.codecs.__path__, "psnode.codecs."):
        for _, cls in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(cls, Codec | Lossless) and not inspect.isabstract(cls) and cls.__module__ == module.name:
                found.add(cls)
    return found


def test_every_class_is_registered_and_every_entry_is_a_class() -> None:
    """Check that the table lists exactly the classes of the modules, apart from Chain, which is not a stage: a spec with +
    builds it.
    """
    registered = {table.load(name) for name, entry in STAGES.items() if entry.target}
    assert {found for found in concrete_classes() if not issubclass(found, Chain)} == registered


def test_every_class_bears_the_id_it_is_registered_by() -> None:
    for name, entry in STAGES.items():
        if entry.target:
            assert table.load(name).id == name


def test_numbers_are_distinct_bytes_that_never_change() -> None:
    numbers = [entry.number for entry in STAGES.values()]
    assert len(set(numbers)) == len(numbers)
    assert all(1 <= number <= 255 for number in numbers)
    stable = {"identity": 1, "fp16": 2, "bf16": 3, "svd": 4, "qsgd": 5, "topk": 16, "zstd": 64, "ans": 65, "rice": 66}
    assert {name: table.number_of(name) for name in stable} == stable


def test_available_lists_codecs_and_no_stages() -> None:
    assert available() == sorted(available())
    assert {"identity", "fp16", "bf16", "svd", "qsgd"} <= set(available())
    assert not {"zstd", "ans", "rice", "contractive", "chain"} & set(available())


@pytest.mark.parametrize("name", available())
def test_every_id_works_bare(name: str) -> None:
    assert get_codec(name).id == name


def test_names_of_schemes_that_are_no_codecs_answer_with_their_codec() -> None:
    """Check that table.SCHEMES agrees with the schemes of the configuration, which the codecs cannot import, and that the
    error names the scheme's codec.
    """
    schemes = {name: scheme.codec for name, scheme in NAMES.items() if name not in available()}
    assert schemes == table.SCHEMES
    for name, codec in schemes.items():
        for written in (name, name.upper(), name.replace("-", "_")):
            with pytest.raises(
                CodecSpecError, match=f"{written} is a scheme, which psnode codecs {name} explains; its codec is {codec}"
            ):
                get_codec(written)


def test_powersgd_answers_with_the_nearest_codec(psnode: Callable[..., Any]) -> None:
    with pytest.raises(CodecSpecError, match="psnode has no codec PowerSGD; the nearest is svd"):
        get_codec("PowerSGD:rank=2")
    done = psnode("codecs", "powersgd")
    assert (done.code, "the nearest is svd" in done.err) == (2, True)


def test_the_package_exports_its_interface() -> None:
    assert set(psnode.codecs.__all__) == {"Codec", "Payload", "available", "get_codec", "register"}


def imported_by(code: str) -> set[str]:
    """Return the top-level packages in sys.modules after `code` has run in a new process."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=600, check=True)
    return set(json.loads(done.stdout))


def test_importing_the_package_needs_numpy_alone() -> None:
    loaded = imported_by("from psnode.codecs import available, get_codec\navailable()")
    assert "numpy" in loaded
    assert not {"numba", "torch", "scipy", "mpi4py", "zstandard"} & loaded


def test_using_codecs_needs_neither_torch_nor_mpi() -> None:
    code = """
import numpy as np
from psnode.codecs import available, get_codec
for name in available():
    codec = get_codec(name)
    codec.decode(codec.encode(np.ones((8, 9), np.float32), np.random.default_rng(1)))
"""
    assert not {"torch", "mpi4py", "cupy", "matplotlib"} & imported_by(code)
