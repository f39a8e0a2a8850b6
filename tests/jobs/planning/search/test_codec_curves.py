"""Curves of codecs: made-up costs with known coefficients, SciPy's fit, and the curves of a model that was measured."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.optimize import nnls

from psnode.errors import ConfigurationError
from psnode.jobs.planning.profile import GroupCosts, SchemeCosts
from psnode.jobs.planning.search.codec_curves import (
    CodecCurves,
    CostLine,
    fitted_curves,
    fitted_line,
    mixed_curves,
    nonnegative_fit,
)

TENSORS = [(4000, 40), (90_000, 300), (0, 700), (25_000, 25), (700_000, 1000)]  # coded and plain coordinates
# fixed cost, and costs of a coded and of a plain coordinate
LINES = {
    "up": (56.0, 0.5, 4.0), "down": (60.0, 1.25, 4.0), "encode": (2e-4, 3e-9, 0.0), "apply": (3e-5, 2e-9, 1e-9),
    "decode": (1e-4, 1e-9, 5e-10), "update": (5e-5, 0.0, 3e-9),
}  # fmt: skip


def cost(name: str, coded: float, plain: float) -> float:
    fixed, each_coded, each_plain = LINES[name]
    return fixed + each_coded * coded + each_plain * plain


def made_up(cuts: list[int], noise: random.Random | None = None) -> SchemeCosts:
    """Return the costs of groups of TENSORS that end at `cuts`. Only the sum of a worker's coding times is known; it is
    divided among the groups by size.
    """
    groups, start = [], 0
    whole = sum(coded + plain for coded, plain in TENSORS)
    sums = []
    for stop in cuts:
        inside, start = TENSORS[start:stop], stop
        sums.append((sum(coded for coded, _ in inside), sum(plain for _, plain in inside)))
    encode = sum(cost("encode", *each) for each in sums)
    for coded, plain in sums:
        found = {name: cost(name, coded, plain) for name in LINES}
        if noise is not None:
            found = {name: value * noise.uniform(0.98, 1.02) for name, value in found.items()}
        share = encode * (coded + plain) / whole
        groups.append(
            GroupCosts(
                int(found["up"]),
                int(found["down"]),
                share,
                found["apply"],
                found["decode"],
                found["update"],
                0.0,
                0.0,
                coded,
                plain,
            )
        )
    kept = 1e-4 * (len(cuts) + 1) + 2e-9 * whole  # with the report's frame
    return SchemeCosts(tuple(groups), kept / (len(cuts) + 1), 2e-4 * len(cuts), True)


GROUPINGS = ([5], [2, 4, 5], [1, 2, 3, 4, 5])


def test_the_coefficients_of_made_up_costs_come_back() -> None:
    found = fitted_curves([made_up(cuts) for cuts in GROUPINGS])
    for name, (fixed, coded, plain) in LINES.items():
        line = getattr(found, name)
        assert line.fixed == pytest.approx(fixed, rel=0.02), name  # bytes are whole numbers
        assert line.coded == pytest.approx(coded, rel=1e-3, abs=1e-12), name
        if name != "encode":  # known in all only: the model's plain coordinates are no more in one grouping than in another
            assert line.plain == pytest.approx(plain, rel=0.02, abs=1e-12), name
    assert found.extra.at(1000, 1000) == pytest.approx(2e-4)
    whole = [sum(each) for each in zip(*TENSORS, strict=True)]
    assert found.bookkeeping.fixed == pytest.approx(1e-4)
    assert found.bookkeeping.at(*whole) == pytest.approx(1e-4 + 2e-9 * sum(whole))


def test_costs_of_a_grouping_that_was_not_fitted_are_those_of_the_formula() -> None:
    found = fitted_curves([made_up(cuts, random.Random(place)) for place, cuts in enumerate(GROUPINGS)])
    for coded, plain in ((94_000, 340), (725_000, 1725), (0, 700)):
        group = found.group(coded, plain, 0.5, 0.25)
        assert (group.ready, group.needed, group.coded, group.plain) == (0.5, 0.25, coded, plain)
        for name in ("up", "down", "decode", "update"):
            assert getattr(group, name) == pytest.approx(cost(name, coded, plain), rel=0.15), name


def test_one_grouping_is_refused_and_so_are_groups_that_do_not_tell_their_coordinates() -> None:
    with pytest.raises(ConfigurationError, match="a model of several layers"):
        fitted_curves([made_up([5]), made_up([5])])
    silent = [SchemeCosts((GroupCosts(1, 1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),) * count, 0.0, 0.0, True) for count in (1, 2)]
    with pytest.raises(ConfigurationError, match="measure the profile again"):
        fitted_curves(silent)


def test_a_fit_is_scipy_s() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        matrix = rng.random((rng.integers(3, 9), 3)) * 10.0 ** rng.integers(-3, 4, 3)
        target = rng.standard_normal(len(matrix)) + 0.5
        found = np.array(nonnegative_fit(matrix, target))
        _, miss = nnls(matrix, target)
        assert found.min() >= 0
        assert np.linalg.norm(matrix @ found - target) == pytest.approx(miss, rel=1e-9, abs=1e-12)


def test_costs_of_nothing_give_a_line_of_nothing() -> None:
    assert fitted_line([(1, 10, 0), (1, 20, 5)], [0.0, 0.0]) == CostLine(0.0, 0.0, 0.0)


def curves(value: float) -> CodecCurves:
    line = CostLine(value, value, value)
    return CodecCurves(line, line, line, line, line, line, line, line)


def test_a_pair_of_codecs_has_the_gradients_of_one_and_the_changes_of_the_other() -> None:
    found = mixed_curves(curves(1.0), curves(2.0))
    assert {name for name, line in parts(found) if line == 2.0} == {"down", "apply", "update"}
    assert {name for name, line in parts(found) if line == 1.0} == {"up", "encode", "decode", "extra", "bookkeeping"}


def parts(found: CodecCurves) -> Iterator[tuple[str, float]]:
    yield from ((name, line.fixed) for name, line in vars(found).items())
