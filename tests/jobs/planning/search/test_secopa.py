"""SeCoPa's decisions: the size from which coding pays, and the number of parts, by hand."""

from __future__ import annotations

import math

import pytest

from psnode.errors import ConfigurationError
from psnode.jobs.planning.profile import HostCosts, Profile, TensorTimes
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.jobs.planning.search.codec_curves import CodecCurves, CostLine
from psnode.jobs.planning.search.grouping import CodecCandidate
from psnode.jobs.planning.search.secopa import ExchangeTimes, exchange_times, secopa
from psnode.jobs.planning.search.step_clocks import StepClocks

FREE = HostCosts(0.0, 0.0, 0.0, 0.0, 2, 1.0)
WORKERS, BYTES = 3, 1e6  # a second
QSGD = "qsgd:levels=15,bucket=512"


def clocks_of(
    shapes: list[tuple[int, ...]],
    encode: CostLine,
    decode: CostLine,
    *,
    cores: int = 2,
    codecs: tuple[str, ...] = (QSGD, "identity"),
) -> StepClocks:
    """Return clocks of a codec with one byte per coordinate in each direction, and of uncoded tensors with four. Every frame
    has 100 more bytes.
    """
    tensors = tuple(TensorTimes(shape, 0.1, 0.0, f"tensor {place}") for place, shape in enumerate(shapes))
    profile = Profile("model", 1, 0.05, 0.1, 0.0, tensors, FREE, {}, {})
    none, frame, whole = CostLine(0.0, 0.0, 0.0), CostLine(100.0, 1.0, 4.0), CostLine(100.0, 4.0, 4.0)
    own = CodecCurves(frame, frame, encode, none, decode, none, none, none)
    bare = CodecCurves(whole, whole, encode, encode, encode, encode, none, none)
    candidates = [CodecCandidate("own", codecs[0], own, 0.1), CodecCandidate("dense", codecs[-1], bare, 0.0)]
    return StepClocks(profile, candidates[: len(codecs)], Scenario(WORKERS, 8 * BYTES / GOODPUT, 0.0, cores))


def test_coding_pays_from_the_size_at_which_the_sums_are_equal() -> None:
    """Check the size n from which coding pays, in one lane. It saves 2 P 3 n / B s and costs .05 + 2e-6 n + P (.01 + 1e-6 n)
    s: n = .08 / (18e-6 - 5e-6).

    P is the number of workers, and B the link's bytes per second.
    """
    limit = 0.08 / (2 * WORKERS * 3 / BYTES - 2e-6 - WORKERS * 1e-6)
    rows = [math.floor(limit / 64), math.ceil(limit / 64) + 1]
    clocks = clocks_of([(count, 64) for count in rows], CostLine(0.05, 2e-6, 0.0), CostLine(0.01, 1e-6, 0.0))
    assert [group.flags for group in secopa(clocks, most=1)] == ["dense", "own"]
    assert [group.names for group in secopa(clocks)] == [("tensor 0",), ("tensor 1",)]


def test_stages_side_by_side_pay_from_a_smaller_size_where_the_link_binds() -> None:
    """Check a tensor for which coding pays only if its parts overlap: one part takes the sum of the stages, but with many
    parts the longest stage decides.
    """
    encode, decode = CostLine(0.0, 5e-6, 0.0), CostLine(0.0, 6e-6, 0.0)
    clocks = clocks_of([(1000, 100)], encode, decode)  # sums: 18e-6 saved, 5e-6 + 18e-6 spent
    assert [group.flags for group in secopa(clocks)] == ["dense"]
    uncoded = 4 * WORKERS / BYTES * (1 + 1)
    lanes, others = 3 * 6e-6, 5e-6 + 2 * WORKERS / BYTES  # of the coded gradient, whose lanes are the longest stage
    paying = [parts for parts in range(1, 9) if lanes + others / parts < uncoded]
    assert paying
    [found] = secopa(clocks, overlapped=True)
    assert (found.flags, found.parts) == ("own", 8)


@pytest.mark.parametrize(("cores", "parts"), [(2, 1), (3, 2), (4, 3), (5, 4), (64, 4)])
def test_parts_divide_the_lanes(cores: int, parts: int) -> None:
    """Check that as many parts as lanes are best if only frames have fixed costs, since lanes decode side by side."""
    clocks = clocks_of([(1000, 100)], CostLine(0.0, 1e-7, 0.0), CostLine(0.0, 2e-6, 0.0), cores=cores)
    [found] = secopa(clocks)
    assert (found.flags, found.parts) == ("own", parts)


def test_no_part_is_smaller_than_a_partition() -> None:
    clocks = clocks_of([(100, 100)], CostLine(0.0, 1e-7, 0.0), CostLine(0.0, 2e-6, 0.0), cores=5)
    assert [group.parts for group in secopa(clocks)] == [2]  # 10 000 coordinates are two partitions of 4096 and a rest


def test_small_tensors_stay_as_they_are() -> None:
    clocks = clocks_of([(100_000,), (8, 8)], CostLine(0.0, 0.0, 0.0), CostLine(0.0, 0.0, 0.0))
    assert [group.flags for group in secopa(clocks)] == ["dense", "dense"]


def test_the_stages_of_an_exchange_by_hand() -> None:
    """Check the stages by hand for three parts of 1000 coordinates in two lanes, one of which decodes two parts."""
    clocks = clocks_of([(60, 50)], CostLine(0.5, 1e-3, 0.0), CostLine(0.25, 2e-3, 0.0), cores=3)
    found = exchange_times(clocks, clocks.candidates[0], 3000, 0, 3)
    frames = 3 * WORKERS * 1100 / BYTES
    assert found == pytest.approx((3 * 1.5, frames, 2 * WORKERS * 2.25, frames, 0.0))
    times = ExchangeTimes(1.0, 2.0, 5.0, 2.0, 1.0)
    assert times.seconds(3, overlapped=False) == 11.0
    assert times.seconds(3, overlapped=True) == 5.0 + 6.0 / 3


def test_a_candidate_that_codes_nothing_is_needed() -> None:
    line = CostLine(0.0, 0.0, 0.0)
    with pytest.raises(ConfigurationError, match="such as dense"):
        secopa(clocks_of([(64, 64)], line, line, codecs=(QSGD,)))
