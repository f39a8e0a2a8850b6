"""Selections on a stand-in for a device, in cases where payloads of finite gradients would not show a mistake."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.codecs import Codec, get_codec
from psnode.codecs.arrays import Bytes, Words, Words32
from psnode.codecs.device.checks import check
from psnode.codecs.device.device_codecs import on_device
from psnode.codecs.device.gap_code import written
from psnode.codecs.registry import register
from psnode.codecs.rng import Key
from psnode.codecs.selection import indices
from psnode.codecs.selection.selector import Selector
from psnode.codecs.selection.threshold_search import F, Search
from psnode.errors import NonFiniteGradientError
from psnode.exchange.device.segment import DeviceSegment
from psnode.feedback import Context, get_feedback
from tests.rows.fake_cupy import CPU, FakeCupy, install
from tests.rows.hosted import GXX

with_gxx = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
KEY = Key.derive(1, "edges")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    return install(monkeypatch, tmp_path)


class Pushed:
    """A segment of `size` values on the device, with error feedback, coded by `codecs`."""

    def __init__(self, size: int, *codecs: Codec) -> None:
        rule = get_feedback("ef")
        found = {repr(codec): there for codec in codecs if (there := on_device(codec, CPU)) is not None}
        self.residual = np.zeros(size, np.float32)
        self.segment = DeviceSegment(found, CPU, rule, (size,), {"residual": self.residual})

    def push(self, codec: Codec, gradient: np.ndarray) -> bytes:
        """Push a gradient, and return the body of the payload."""
        room = np.zeros(codec.max_nbytes(gradient.shape), np.uint8)
        pieces = [(0, torch.tensor(gradient))]
        return self.segment.push(pieces, codec, KEY, room, Context(2, 1.0)).body.tobytes()


@with_gxx
@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("spec", ["topk", "topk+fp16", "graddrop", "randk:ratio=1.0,scaled=false", "topk+onebit"])
def test_a_sum_that_is_not_finite_is_reported_as_it_was(spec: str) -> None:
    """Check that the error shows the infinite sum: if the selection were subtracted first, infinity minus infinity would be
    NaN.
    """
    codec, gradient = get_codec(spec), np.zeros(3000, np.float32)
    pushed = Pushed(gradient.size, codec)
    pushed.residual[1234] = gradient[1234] = -3e38
    with pytest.raises(NonFiniteGradientError, match="gradient is -inf at flat index 1234"):
        pushed.push(codec, gradient)


@with_gxx
def test_the_norm_of_zeros_is_not_added_up_one_after_the_other(cupy: FakeCupy) -> None:
    """Check that the kernel for norms does not run on zeros: on a device, a single warp would take a second to add 2^24
    values.
    """
    codec = get_codec("threshold")
    pushed = Pushed(5000, codec)
    zeros = np.zeros(5000, np.float32)
    zeros[7::3] = -0.0
    assert pushed.push(codec, zeros) == codec.encode(zeros, KEY).body.tobytes()
    assert "norm_of_rows" not in cupy.launched
    zeros[4999] = 1e-45
    assert pushed.push(codec, zeros) == codec.encode(zeros, KEY).body.tobytes()
    assert "norm_of_rows" in cupy.launched


@with_gxx
@pytest.mark.usefixtures("cupy")
def test_of_an_earlier_phase_nothing_stays_on_the_device() -> None:
    first, last = get_codec("topk:ratio=0.25"), get_codec("topk:ratio=0.01")
    pushed = Pushed(5000, first, last)
    gradient = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    pushed.push(first, gradient)
    earlier = weakref.ref(pushed.segment._encoder(first))
    pushed.push(last, gradient)
    assert earlier() is None


def test_groups_of_gaps_are_fitted_where_powers_are_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the code of indices is the same if pow returns the next smaller float, since CUDA's pow may be wrong in the
    last place.

    The last group has 25 gaps with the sum 81; its best width b = 1 depends on the last bit of 2^1.
    """
    chosen = np.cumsum([*[1] * 320, *[1000] * 320, *[4] * 24, 10], dtype=np.uint32) - 1
    size = 1 << 20
    code = written(torch.from_numpy(chosen.astype(np.int32)), size)
    assert code is not None
    power = torch.Tensor.__rpow__

    def below(exponents: torch.Tensor, base: float) -> torch.Tensor:
        found = power(exponents, base)
        return torch.nextafter(found, torch.zeros_like(found))

    monkeypatch.setattr(torch.Tensor, "__rpow__", below)
    again = written(torch.from_numpy(chosen.astype(np.int32)), size)
    assert again is not None and again[0] == code[0] and torch.equal(again[1], code[1])


@dataclass(frozen=True, repr=False)
class Own(Selector):
    """A selection from outside psnode, with id "own", which selects values of at least 2."""

    id = "own"
    number = 200

    def _most(self, size: int) -> int:
        return size

    def _select(self, search: Search[F], key: Words) -> F:
        return search.at_least(int(np.float32(2).view(np.uint32)), search.size, search.size)


class Changed(Own):
    """A later version of the selection Own, with another code of indices."""

    def _write_indices(self, selected: Words32, key: Words, size: int, side: Bytes) -> int:
        return indices.write((size - 1 - selected)[::-1].copy(), size, side)

    def _read_indices(self, side: Bytes, size: int) -> Words32:
        return (size - 1 - indices.read(side, size))[::-1].astype(np.uint32)


@with_gxx
@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("spec", ["own", "own+fp16"])
def test_nothing_is_remembered_of_a_selection_by_code_of_ones_own(spec: str) -> None:
    register(Own)
    for _ in range(2):
        verdict = check(get_codec(spec), CPU)
        assert verdict is not None and verdict.on_device is not None and not verdict.is_known, verdict
    register(Changed)
    verdict = check(get_codec(spec), CPU)
    assert verdict is not None and verdict.on_device is None and "another payload" in verdict.problem
