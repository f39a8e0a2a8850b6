"""Adam and AdamW in one pass over memory. torch's optimizers make one pass for every operation of a step.

Source: Kingma and Ba, "Adam", ICLR 2015; Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.cache_hints import wide
from psnode.codecs.kernels.jit import kernel
from psnode.config import Config
from psnode.exchange.update.sgd import multiply_add


class Moments(NamedTuple):
    """Settings of one parameter group. `beta1` and `beta2` are torch's betas; `decoupled`: True for AdamW's weight decay."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool


class Coefficients(NamedTuple):
    """Coefficients of a step in float32.

    `root`: square root of 1 - beta2^count; `new1`: 1 - beta1; `new2`: 1 - beta2; `rate`: -lr / (1 - beta1^count).
    """

    factor: np.float32
    decay: np.float32  # weight decay added to the gradient
    shrink: np.float32  # factor of the weights before the step
    new1: np.float32
    beta2: np.float32
    new2: np.float32
    root: np.float32
    eps: np.float32
    rate: np.float32


def adam(
    x: Floats, mean: Floats, square: Floats, total: Floats, moments: Moments, *, factor: float, lr: float, count: int
) -> None:
    """Take one step of torch.optim.Adam or AdamW on `x` with the gradient factor * total. Then set `total` to 0.

        g = factor * total (+ weight_decay * x for Adam);  x = (1 - lr weight_decay) x for AdamW
        mean = beta1 mean + (1 - beta1) g;  square = beta2 square + (1 - beta2) g^2
        x = x - lr / (1 - beta1^count) mean / (sqrt(square / (1 - beta2^count)) + eps)

    `count`: the number of the step, from 1. All arrays are flat float32 of one size. `mean` and `square` have the same bits as
    in torch. The square root here is always the nearest float32, unlike torch's. So `x` may differ from torch's by a few units
    in the last place.
    """
    _adam(x, mean, square, total, coefficients_of(moments, factor=factor, lr=lr, count=count))


def coefficients_of(moments: Moments, *, factor: float, lr: float, count: int) -> Coefficients:
    """Return the coefficients of the step with number `count`, counted from 1."""
    beta1, beta2, eps, weight_decay, decoupled = moments
    return Coefficients(
        np.float32(factor),
        np.float32(0 if decoupled else weight_decay),
        np.float32(1 - lr * weight_decay if decoupled else 1),
        np.float32(1 - beta1),
        np.float32(beta2),
        np.float32(1 - beta2),
        np.float32((1 - beta2**count) ** 0.5),
        np.float32(eps),
        np.float32(-lr / (1 - beta1**count)),
    )


@kernel
def _adam(x: Floats, mean: Floats, square: Floats, total: Floats, coefficients: Coefficients) -> None:
    """Take the step described at `adam`.

    `coefficients` are unpacked before the loop, since otherwise the loop would not be vectorised.
    """
    wide()
    factor, decay, shrink, new1, beta2, new2, root, eps, rate = coefficients
    old1 = new1 - np.float32(1)
    near = new1 < np.float32(0.5)  # like torch, interpolate from the nearer end
    for i in range(x.size):
        start = shrink * x[i]
        g = multiply_add(decay, start, factor * total[i])
        change = g - mean[i]
        mean[i] = multiply_add(new1 if near else old1, change, mean[i] if near else g)
        square[i] = multiply_add(new2 * g, g, beta2 * square[i])
        x[i] = start + (rate * mean[i]) / (np.sqrt(square[i]) / root + eps)
        total[i] = 0


def in_one_pass(config: Config) -> bool:
    """Return True if the optimizer of `config` is Adam or AdamW, and no options of torch's optimizers are set."""
    return config.optimizer in ("adam", "adamw") and not config.optimizer_option
