"""psnode's Adam and AdamW in one pass: torch's moments bit for bit, and torch's steps except for the rounding of a square
root.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from psnode.exchange.update.adam import Moments, adam

CASES = [
    (torch.optim.Adam, Moments(0.9, 0.999, 1e-8, 0.0, False)),
    (torch.optim.Adam, Moments(0.9, 0.999, 1e-8, 0.01, False)),
    (torch.optim.AdamW, Moments(0.9, 0.95, 1e-6, 0.1, True)),
    (torch.optim.AdamW, Moments(0.5, 0.9, 1e-3, 0.01, True)),
    (torch.optim.AdamW, Moments(0.2, 0.999, 1e-8, 0.0, True)),
    (torch.optim.Adam, Moments(0.0, 0.9, 1e-8, 0.0, False)),
]


def of_torch(
    kind: type[torch.optim.Optimizer], start: np.ndarray, moments: Moments
) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    settings = {"betas": (moments.beta1, moments.beta2), "eps": moments.eps, "weight_decay": moments.weight_decay}
    return parameter, kind([parameter], lr=0.1, foreach=False, **settings)  # type: ignore[call-arg]


@pytest.mark.parametrize(("kind", "moments"), CASES)
def test_a_thousand_steps_are_those_of_torch(kind: type[torch.optim.Optimizer], moments: Moments) -> None:
    """Compare calls of `adam` for 1, 7 and 1003 values with torch's steps for all of these values at once."""
    size, parts = 1 + 7 + 1003, (slice(0, 1), slice(1, 8), slice(8, None))
    rng = np.random.default_rng(size)
    start = rng.standard_normal(size).astype(np.float32)
    parameter, torchs = of_torch(kind, start, moments)
    x, mean, square = start.copy(), np.zeros(size, np.float32), np.zeros(size, np.float32)
    for count in range(1, 1001):
        lr = 0.01 / (1 + count % 3)
        total = rng.standard_normal(size).astype(np.float32) * np.float32(10.0 ** -(count % 7))
        parameter.grad = torch.from_numpy(total * np.float32(1 / 3))
        torchs.param_groups[0]["lr"] = lr
        before = x.copy()
        torchs.step()
        for part in parts:
            adam(x[part], mean[part], square[part], total[part], moments, factor=1 / 3, lr=lr, count=count)
        assert not total.any()
        theirs, state = parameter.detach().numpy(), torchs.state[parameter]
        np.testing.assert_array_equal(mean, state["exp_avg"].numpy())
        np.testing.assert_array_equal(square, state["exp_avg_sq"].numpy())
        # two units in the last place of the step, and the rounding of the sum
        bound = 2.0**-22 * np.abs(theirs - before) + np.spacing(np.maximum(np.abs(theirs), np.abs(before)))
        assert np.all(np.abs(x - theirs) <= bound)
        parameter.data.copy_(torch.from_numpy(x))  # both take the next step from the same values


def test_differences_do_not_pile_up() -> None:
    """Check that after 1000 steps the weights differ from torch's by at most 1e-6 of the distance that they have moved, plus
    the rounding of 1000 sums.
    """
    rng = np.random.default_rng(3)
    start = rng.standard_normal(4099).astype(np.float32)
    moments = Moments(0.9, 0.999, 1e-8, 0.01, True)
    parameter, torchs = of_torch(torch.optim.AdamW, start, moments)
    x, mean, square = start.copy(), np.zeros_like(start), np.zeros_like(start)
    way = np.zeros(start.size)
    for count in range(1, 1001):
        total = rng.standard_normal(start.size).astype(np.float32)
        parameter.grad = torch.from_numpy(total.copy())
        torchs.param_groups[0]["lr"] = 1e-3
        torchs.step()
        before = x.copy()
        adam(x, mean, square, total, moments, factor=1.0, lr=1e-3, count=count)
        way += np.abs(x - before)
    rounding = 1000 * np.spacing(np.float32(4)) / 2  # of 1000 sums
    assert np.all(np.abs(x - parameter.detach().numpy()) <= 1e-6 * way + rounding)


def test_zeros_stay_and_nothing_is_divided_by_zero() -> None:
    x, mean, square, total = (np.zeros(40, np.float32) for _ in range(4))
    adam(x, mean, square, total, Moments(0.9, 0.999, 1e-8, 0.01, True), factor=1.0, lr=0.1, count=1)
    assert not x.any() and not mean.any() and not square.any()
