"""scripts/fuzz.py on 20 000 random inputs (100 000 with --long), and its reader on decoders with a fault and on the corpus."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from tests.codecs.family import gaussian

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fuzz.py"


@pytest.fixture(scope="module")
def reader() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        yield importlib.import_module("fuzz_reader")


@pytest.mark.long
@pytest.mark.timeout(600)  # takes 10 s once the kernels are compiled
def test_frames_and_payloads_of_noise_end_in_typed_errors_or_arrays(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    runs = 100_000 if pytestconfig.getoption("--long") else 20_000
    done = subprocess.run(
        [sys.executable, SCRIPT, "--runs", str(runs), "--seed", "1"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    read, refused = (int(done.stdout.split(word)[0].split()[-1]) for word in (" read,", " refused,"))
    assert read + refused >= runs
    assert min(read, refused) > runs / 10  # changes reach the decoders, and damage is detected
    assert not (tmp_path / "fuzz-failure.bin").exists()


class Broken:
    """A decoder with a fault that psnode's decoders must not have."""

    linear = False

    def __init__(self, fault: str) -> None:
        self._fault, self._good = fault, get_codec("fp16")

    def decode_add(self, payload: Payload, out: object) -> None:
        if self._fault == "untyped":
            raise IndexError
        if self._fault == "half":
            out[0] = 1  # type: ignore[index]
            self._good.decode(Payload(payload.data[:-1]))
        if self._fault == "memory":
            bytearray(1 << 40)

    def decode(self, payload: Payload) -> object:
        return self._good.decode(payload).astype("f8")


@pytest.mark.parametrize(
    ("fault", "error"), [("untyped", IndexError), ("half", AssertionError), ("memory", MemoryError), ("type", AssertionError)]
)
def test_whatever_breaks_the_rules_comes_out(
    reader: ModuleType, monkeypatch: pytest.MonkeyPatch, fault: str, error: type[Exception]
) -> None:
    payload = get_codec("fp16").encode(gaussian(20), Key.derive(1)).to_bytes()
    read = reader.Reader()
    read(bytes([reader.PAYLOAD]) + payload)
    assert (read.decoded, read.refused) == (1, 0)
    monkeypatch.setattr(reader, "_decoder", lambda stages: Broken(fault))
    with pytest.raises(error):
        read(bytes([reader.PAYLOAD]) + payload)


def test_every_input_of_the_corpus_is_read_without_harm(reader: ModuleType) -> None:
    paths = sorted((SCRIPT.parents[1] / "tests" / "corpus").glob("*"))
    assert len(paths) > 1
    read = reader.Reader()
    for path in paths:
        read(path.read_bytes())
    assert read.decoded + read.refused == len(paths)
