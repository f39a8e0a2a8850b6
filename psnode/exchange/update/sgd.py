"""Stochastic gradient descent in one pass over memory.

torch's SGD makes one pass for every operation of a step. The mean of the gradients and the clearing of the sum would take two
more passes. At 45 MB a pass, all these passes would be a large part of a step's processor time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from psnode.codecs.kernels.jit import kernel
from psnode.codecs.kernels.llvm.instructions import instructions
from psnode.codecs.kernels.llvm.operations import fma
from psnode.codecs.kernels.llvm.runtime_values import rounds_once

Floats = npt.NDArray[np.float32]


def descend(
    x: Floats, velocity: Floats, total: Floats, *, factor: float, lr: float, momentum: float, weight_decay: float, nesterov: bool
) -> None:
    """Take one step of torch.optim.SGD on `x` with the gradient factor * total. Then set `total` to 0.

        d = factor * total + weight_decay * x
        velocity = momentum * velocity + d
        x = x - lr * (d + momentum * velocity if nesterov else velocity)

    All arrays are flat float32 of one size; `velocity` is empty if `momentum` is 0. Values are rounded at the same places as
    in torch's loops over float32: processors that multiply and add in one instruction round a * b + c once. The bits are those
    of torch, except that a zero may have the other sign.
    """
    coefficients = np.array([factor, -lr, momentum, weight_decay], np.float32)
    if not momentum:
        _descend_plain(x, total, *coefficients[[0, 1, 3]])
    elif nesterov:
        _descend_nesterov(x, velocity, total, *coefficients)
    else:
        _descend_momentum(x, velocity, total, *coefficients)


def descend_beside(
    x: Floats, velocity: Floats, total: Floats, *, factor: float, lr: float, decay: float, momentum: float, nesterov: bool
) -> None:
    """Take one step on `x` with gradients that senders have gathered with a momentum. Then set `total` to 0.

    Weight decay is gathered here with the same momentum:

        velocity = momentum * velocity + decay * x
        x = x - lr * (factor * total + (decay * x + momentum * velocity if nesterov else velocity))

    Since the recursion is linear, the momenta of senders and master add up to one momentum of gradient and decay.
    """
    coefficients = np.array([factor, -lr, momentum, decay], np.float32)
    _descend_beside(x, velocity, total, nesterov, *coefficients)


@instructions
def multiply_add(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """Return a * b + c. It is rounded once if the processor has one instruction for both operations, otherwise twice."""
    return fma(a, b, c) if rounds_once() else a * b + c


@kernel
def _descend_plain(x: Floats, total: Floats, factor: np.float32, rate: np.float32, decay: np.float32) -> None:
    for i in range(x.size):
        x[i] = multiply_add(rate, multiply_add(decay, x[i], factor * total[i]), x[i])
        total[i] = 0


@kernel
def _descend_momentum(
    x: Floats, velocity: Floats, total: Floats, factor: np.float32, rate: np.float32, momentum: np.float32, decay: np.float32
) -> None:
    for i in range(x.size):
        velocity[i] = momentum * velocity[i] + multiply_add(decay, x[i], factor * total[i])
        x[i] = multiply_add(rate, velocity[i], x[i])
        total[i] = 0


@kernel
def _descend_nesterov(
    x: Floats, velocity: Floats, total: Floats, factor: np.float32, rate: np.float32, momentum: np.float32, decay: np.float32
) -> None:
    for i in range(x.size):
        d = multiply_add(decay, x[i], factor * total[i])
        velocity[i] = momentum * velocity[i] + d
        x[i] = multiply_add(rate, multiply_add(momentum, velocity[i], d), x[i])
        total[i] = 0


@kernel
def _descend_beside(
    x: Floats, velocity: Floats, total: Floats, nesterov: bool, factor: np.float32, rate: np.float32, momentum: np.float32,
    decay: np.float32,
) -> None:  # fmt: skip
    for i in range(x.size):
        d = decay * x[i]
        velocity[i] = multiply_add(momentum, velocity[i], d)
        owed = multiply_add(momentum, velocity[i], d) if nesterov else velocity[i]
        x[i] = multiply_add(rate, multiply_add(factor, total[i], owed), x[i])
        total[i] = 0
