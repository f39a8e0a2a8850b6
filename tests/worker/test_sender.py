"""What becomes of residuals when a gradient is not finite."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.config import Config
from psnode.errors import NonFiniteGradientError
from psnode.link import Link
from psnode.plan import Plan
from psnode.schemes import resolve
from psnode.transport.loopback import loopback_group
from psnode.wire import Kind
from psnode.worker.sender import GradientSender

CODEC = "topk:ratio=0.05"
PLAN = Plan.from_dict(
    {
        "tensors": [["a", [50, 100]], ["b", [30, 100]], ["c", [7]]],
        "groups": [[[CODEC, 0, [5000]], [CODEC, 5000, [3000]], ["identity", 8000, [7]]]],
    }
)


class Given:
    """A gradient that no model has made, in two parts."""

    def __init__(self) -> None:
        self.vector = np.random.default_rng(1).standard_normal(8007).astype(np.float32)

    def flat(self, start: int, stop: int) -> np.ndarray:
        return self.vector[start:stop]

    def parts(self, start: int, stop: int) -> list[tuple[int, np.ndarray]]:
        middle = (stop - start) // 2
        return [(0, self.vector[start : start + middle]), (middle, self.vector[start + middle : stop])]


def step(sender: GradientSender, number: int) -> None:
    sender.begin(number, number - 1, measure=False)
    sender.push(0)
    sender.drain()


@pytest.mark.parametrize(("place", "added"), [(2500, 2500), (7600, 6500), (8003, 0)])
def test_a_gradient_that_is_not_finite_leaves_residuals_that_are_finite_sums(place: int, added: int) -> None:
    """What is before the bad half of a segment is added, as groups that were sent are; the identity segment is seen first."""
    ends = loopback_group(2)
    given = Given()
    master, link = Link(ends[0]), Link(ends[1])
    scheme = resolve(Config(scheme="dense", codec=CODEC, feedback="ef"))
    sender = GradientSender(PLAN, scheme, link, given, seed=1, lr=lambda step: 0.1, steps_per_epoch=9)  # type: ignore[arg-type]
    try:
        whole = given.vector.copy()
        given.vector[place] = np.inf
        step(sender, 1)
        frame = master.next(10)
        assert frame.kind is Kind.SKIP  # type: ignore[union-attr]
        state = sender.state()
        residual = np.concatenate([state["feedback/0/residual"].numpy(), state["feedback/1/residual"].numpy()])
        np.testing.assert_allclose(residual[:added], whole[:added], rtol=1e-6)
        assert np.all((residual[added:] == 0) | (residual[added:] == whole[added:8000]))
        assert np.all(residual[place:] == 0)
        given.vector[place] = whole[place]
        step(sender, 2)
        assert master.next(10).kind is Kind.GRADIENT  # type: ignore[union-attr]
        given.vector[place] = np.nan
        step(sender, 3)
        step(sender, 4)
        with pytest.raises(NonFiniteGradientError):
            step(sender, 5)
        assert all(bool(memory.isfinite().all()) for memory in sender.state().values())
    finally:
        sender.close()
