"""Measured candidates: which codecs may share a plan, their errors, and curves that give back the bytes of frames."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from psnode.config.load import load
from psnode.config.resolve import resolve
from psnode.jobs.planning import profiling
from psnode.jobs.planning.host_prices.host_costs import CoreRates
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.planning.search.grouping import CodecCandidate, grouped_plan
from psnode.jobs.planning.search.labels import searched
from psnode.jobs.planning.search.measured_candidates import codec_pairs, coding_error, measure_candidates
from psnode.jobs.planning.search.step_clocks import StepClocks
from psnode.plans.coding import Coding
from psnode.plans.groups import Tensor
from psnode.worker import inspection

MODEL = {"network": "FC", "dataset": "synthetic", "synthetic_shape": (1, 8, 8), "batch_size": 4, "threads": 1}
SIZES = [64 * 800, 800, 800 * 500, 500, 500 * 10, 10]


@pytest.fixture(scope="module")
def measured() -> Iterator[tuple[Profile, tuple[CodecCandidate, ...]]]:
    """Measure a few steps of everything: the tests check no times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiling, "_SECONDS", 0.02)
        patch.setattr(inspection, "unwatchable", lambda model: "")  # other tests compile models in this process
        patch.setattr(profiling, "overheads", lambda *_: {"fp32": 0.001})
        patch.setattr(profiling, "core_rates", lambda *_: CoreRates(0.9, 0.95))
        config = load(MODEL | {"scheme": "topk"}, {})
        yield measure_candidates(config, codec_pairs("topk", config))


def test_a_profile_names_its_tensors_and_counts_coded_coordinates(measured: tuple[Profile, tuple[CodecCandidate, ...]]) -> None:
    profile, candidates = measured
    assert sorted(tensor.nbytes for tensor in profile.tensors) == sorted(4 * size for size in SIZES)
    assert len({tensor.name for tensor in profile.tensors}) == 6
    coded = {flags: sum(group.coded for group in costs.groups) for flags, costs in profile.schemes.items()}
    large = 64 * 800 + 800 * 500 + 500 * 10
    assert list(coded.values()) == [large, 0, large]  # topk, dense, bf16
    assert all(sum(group.coded + group.plain for group in costs.groups) == sum(SIZES) for costs in profile.schemes.values())
    assert [candidate.lossy for candidate in candidates] == [True, False, True]  # bf16's changes of weights are topk's


def test_curves_have_the_bytes_of_frames(measured: tuple[Profile, tuple[CodecCandidate, ...]]) -> None:
    """Check that the bytes of dense frames, and of bf16's gradients, are linear in the coordinates; the fixed part is less
    than a kilobyte.
    """
    _, (own, dense, half) = measured
    for line, coded in ((dense.curves.up, 0.0), (dense.curves.down, 0.0), (half.curves.up, 2.0)):
        assert 0 < line.fixed < 1000
        assert line.coded == pytest.approx(coded, rel=1e-3)
    assert dense.curves.up.plain == pytest.approx(4.0, rel=1e-3)
    assert own.curves.up.coded < 0.2  # a hundredth of the coordinates, with their places
    for candidate in (own, dense, half):
        times = (candidate.curves.encode, candidate.curves.apply, candidate.curves.decode, candidate.curves.update)
        assert all(line.at(1e5, 1e3) > 0 for line in times)


def test_a_search_ends_in_a_plan_that_the_scheme_can_code(measured: tuple[Profile, tuple[CodecCandidate, ...]]) -> None:
    profile, candidates = measured
    found = searched(StepClocks(profile, candidates, Scenario(2, 1e8, 2e-4, 4)))[0]
    tensors = [Tensor(each.name, each.shape) for each in profile.tensors]
    plan = grouped_plan(tensors, found.groups, {candidate.flags: candidate.codec for candidate in candidates})
    coding = Coding(plan, resolve(load(MODEL | {"scheme": "topk"}, {})))
    assert len(coding.up) == len(coding.down or ()) == len(plan.segments)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({"scheme": "qsgd"}, ["own", "dense", "dense --codec bf16 --feedback none --downlink qsgd:levels=15,bucket=512"]),
        ({"scheme": "topk", "small_tensors": "coded"}, ["own", "dense", "dense --codec bf16 --feedback ef:rescale=true"]),
        ({"scheme": "dgc"}, ["own", "dense"]),
        ({"scheme": "signsgd"}, ["own"]),
        ({"scheme": "qsgd", "aggregator": "mean:clip=median"}, ["own"]),
        ({"scheme": "dense"}, ["own"]),
    ],
)
def test_codecs_beside_the_scheme_s_own_have_its_feedback_and_downlink(flags: dict[str, str], names: list[str]) -> None:
    """Check the codecs that may share a plan with the scheme's own. dgc allows only dense beside it: dgc forgets the
    momentum of sent coordinates, which needs a sparse codec. Votes and medians need one codec for all groups.
    """
    config = load(MODEL | flags, {})
    found = codec_pairs("own", config)
    assert len(found) == len(names)
    assert all(name.startswith(begin) for name, begin in zip(found, names, strict=True))
    assert found["own"] == config
    for other in found.values():
        scheme = resolve(other)
        if scheme.codec != "identity":
            assert (scheme.feedback, scheme.downlink) == (resolve(config).feedback, resolve(config).downlink)


def test_errors_are_those_of_theory() -> None:
    """Check the errors of top-k and bf16. The largest hundredth of normal values, beyond t = 2.576, has 2 (t phi(t) + Q(t))
    = .0845 of their squares.

    bf16 rounds a value x with 2^e <= |x| < 2^(e + 1) to multiples of 2^(e - 7), with a mean square error of 2^(2e - 14) /
    12.
    """
    topk = coding_error(load(MODEL | {"scheme": "topk"}, {}))
    assert topk == pytest.approx(1 - 0.0845, abs=0.005)
    assert coding_error(load(MODEL | {"scheme": "dense"}, {})) == 0.0
    assert 2**-16 / 12 < coding_error(load(MODEL | {"scheme": "bf16"}, {})) < 2**-14 / 12
