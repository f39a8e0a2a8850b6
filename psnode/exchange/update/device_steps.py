"""Optimizer steps on a device. The kernels round as the host's kernels do, so that weights have the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from psnode.codecs.arrays import Floats
from psnode.codecs.device.row_coder import stream_of
from psnode.codecs.kernels.llvm.runtime_values import rounds_once
from psnode.errors import in_one_line
from psnode.exchange.update.adam import Moments, coefficients_of
from psnode.exchange.update.optimizer_steps import HostSteps, OptimizerSteps

if TYPE_CHECKING:
    from psnode.codecs.device.cupy.step_kernels import StepKernels

_SIZE = 10007


class DeviceSteps:
    """OptimizerSteps that `kernels` compute, for flat float32 tensors on a CUDA device."""

    def __init__(self, kernels: StepKernels, device: torch.device) -> None:
        self._kernels, self._device, self._once = kernels, device, rounds_once()

    @classmethod
    def on(cls, device: torch.device) -> DeviceSteps:
        """Return steps on `device`. The kernels are compiled unless they are cached. Raises ConfigurationError without CuPy."""
        from psnode.codecs.device.cupy.step_kernels import StepKernels

        return cls(StepKernels(device.index or 0), device)

    @property
    def text(self) -> str:
        """The source of the kernels, followed by a line that says if multiply-add rounds once or twice."""
        return f"{self._kernels.text}\n// rounds once: {self._once}"

    def descend(
        self,
        x: torch.Tensor,
        velocity: torch.Tensor,
        total: torch.Tensor,
        *,
        factor: float,
        lr: float,
        momentum: float,
        weight_decay: float,
        nesterov: bool,
    ) -> None:
        """Take the step described at psnode.exchange.update.sgd.descend."""
        f, rate, m, decay = np.array([factor, -lr, momentum, weight_decay], np.float32)
        if not momentum:
            self._step("descend_plain", (x, total), f, rate, decay)
        else:
            self._step("descend_nesterov" if nesterov else "descend_momentum", (x, velocity, total), f, rate, m, decay)

    def descend_beside(
        self,
        x: torch.Tensor,
        velocity: torch.Tensor,
        total: torch.Tensor,
        *,
        factor: float,
        lr: float,
        decay: float,
        momentum: float,
        nesterov: bool,
    ) -> None:
        """Take the step described at psnode.exchange.update.sgd.descend_beside."""
        numbers = np.array([factor, -lr, momentum, decay], np.float32)
        self._step("descend_beside", (x, velocity, total), np.int32(nesterov), *numbers)

    def adam(
        self,
        x: torch.Tensor,
        mean: torch.Tensor,
        square: torch.Tensor,
        total: torch.Tensor,
        moments: Moments,
        *,
        factor: float,
        lr: float,
        count: int,
    ) -> None:
        """Take the step described at psnode.exchange.update.adam.adam."""
        numbers = coefficients_of(moments, factor=factor, lr=lr, count=count)
        self._step("adam", (x, mean, square, total), *numbers)

    def _step(self, name: str, vectors: tuple[torch.Tensor, ...], *numbers: np.float32 | np.int32) -> None:
        if size := vectors[0].numel():
            addresses = [vector.data_ptr() for vector in vectors]
            self._kernels.step(name, stream_of(self._device), addresses, numbers, self._once, size)


def checked_steps(device: torch.device) -> tuple[DeviceSteps | None, str]:
    """Return steps whose results on `device` equal the host's. If a result differs, return None and the reason in one line.

    A kernel that fails is such a reason, too. If all results are equal, a file records this for the present device, driver,
    versions, and source of the kernels and their callers. Raises ConfigurationError without CuPy.
    """
    from psnode.codecs.device.cupy.row_kernels import DeviceIdentity, import_cupy
    from psnode.codecs.rows.compiled import write_whole

    import_cupy()
    try:
        steps = DeviceSteps.on(device)
        mark = DeviceIdentity.of(device.index or 0).file(
            "\n".join((steps.text, torch.__version__, *_sources())), ".steps.trusted"
        )
        if mark.is_file():
            return steps, ""
        if problem := next(differences(steps, device), ""):
            return None, problem
        write_whole(mark, b"")
    except Exception as error:  # any error of a compiler, a driver or a device
        return None, f"its kernels failed: {in_one_line(error)}"
    return steps, ""


def _sources() -> Iterator[str]:
    """Return the source texts of the kernels' callers, and of the host code with which the kernels are compared."""
    from psnode.codecs.device.cupy import step_kernels
    from psnode.exchange.update import adam, sgd

    return (Path(str(file)).read_text() for file in (step_kernels.__file__, adam.__file__, sgd.__file__, __file__))


def differences(steps: OptimizerSteps, device: torch.device) -> Iterator[str]:
    """Yield a line for each step of `steps` with a result that differs in any bit from the host's result on the same vectors."""
    for name, vectors in _inputs():
        for what, step, count in _cases():
            here = [vector.copy() for vector in vectors[:count]]
            there = [torch.tensor(vector).to(device) for vector in here]
            step(HostSteps(), here)
            step(steps, there)
            if any(one.tobytes() != other.cpu().numpy().tobytes() for one, other in zip(here, there, strict=True)):
                yield f"the device takes another step of {what} on {name}"


def _cases() -> Iterator[tuple[str, Callable[[OptimizerSteps, list[Any]], None], int]]:
    """Yield the name of a step, a function that takes the step, and its number of vectors, the last of which is the sum."""
    for momentum, nesterov in ((0.0, False), (0.9, False), (0.9, True)):
        settings: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "factor": 1 / 3, "lr": 0.1}

        def descend(steps: OptimizerSteps, v: list[Any], settings: dict[str, Any] = settings) -> None:
            steps.descend(*v, weight_decay=5e-4, **settings)

        def beside(steps: OptimizerSteps, v: list[Any], settings: dict[str, Any] = settings) -> None:
            steps.descend_beside(*v, decay=5e-4, **settings)

        yield f"sgd with momentum {momentum}{', nesterov' * nesterov}", descend, 3
        if momentum:
            yield f"sgd beside a momentum of {momentum}{', nesterov' * nesterov}", beside, 3
    for decoupled in (False, True):

        def adam(steps: OptimizerSteps, v: list[Any], decoupled: bool = decoupled) -> None:
            x, mean, square, total = v
            steps.adam(x, mean, square, total, Moments(0.9, 0.999, 1e-8, 0.01, decoupled), factor=1 / 3, lr=0.01, count=3)

        yield "adamw" if decoupled else "adam", adam, 4


def _inputs() -> Iterator[tuple[str, list[Floats]]]:
    """Yield pairs of a name and four vectors: x, a velocity or mean, a square, and a sum.

    The values are drawn from N(0,1), or have widely different exponents, or are 0.
    """
    rng = np.random.default_rng(1)
    normal = [rng.standard_normal(_SIZE, np.float32) for _ in range(4)]
    wide = [np.ldexp(vector, rng.integers(-149, 60, _SIZE)).astype(np.float32) for vector in normal]
    for name, vectors in (("N(0,1)", normal), ("all exponents", wide)):
        vectors[2] = np.abs(vectors[2])
        yield name, vectors
    yield "zeros", [np.zeros(_SIZE, np.float32) for _ in range(4)]
