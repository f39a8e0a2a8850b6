"""psnode's SGD in one pass takes the steps of torch's SGD, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from psnode.exchange.update.sgd import descend


@pytest.mark.parametrize("size", [1, 7, 10007])
@pytest.mark.parametrize("weight_decay", [0.0, 5e-4])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_the_weights_are_those_of_torch(size: int, weight_decay: float, momentum: float, nesterov: bool) -> None:
    rng = np.random.default_rng(size)
    start = rng.standard_normal(size).astype(np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    torchs = torch.optim.SGD(
        [parameter], lr=0.1, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, foreach=False, fused=False
    )
    x, velocity = start.copy(), np.zeros(size if momentum else 0, np.float32)
    for step, lr in enumerate((0.1, 0.03, 0.03, 1e-4)):
        total = rng.standard_normal(size).astype(np.float32) * 10.0**-step
        parameter.grad = torch.from_numpy(total * np.float32(1 / 3))
        torchs.param_groups[0]["lr"] = lr
        torchs.step()
        descend(x, velocity, total, factor=1 / 3, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
        np.testing.assert_array_equal(x, parameter.detach().numpy())
        assert not total.any()
    if momentum:
        np.testing.assert_array_equal(velocity, torchs.state[parameter]["momentum_buffer"].numpy())
