"""`python -m studies.atomo_device`: milliseconds to code a model's gradient on its device, beside those of the passes.

The model and its gradient of one batch are on the device. All matrices of the gradient are coded one after another, and the
errors are written to separate tensors. This is done with the exact spectrum (which `deflated` also uses on a device), and again
with the randomised subspace.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from psnode.codecs.rng import Key
from psnode.codecs.svd import Svd
from psnode.config import Config
from psnode.config.declaration import option
from psnode.errors import ConfigurationError
from psnode.tasks.loading import make_task
from studies.atomo import MODELS
from studies.harness import Column, Found, Result, Study, main

if TYPE_CHECKING:
    import torch
    from torch import nn

METHODS = ("exact", "randomised")
_KEY = Key.derive(1, "bench")


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.atomo_device`."""

    model: tuple[str, ...] = option(tuple(MODELS), "Its gradients; repeat.", choices=tuple(MODELS), repeated=True)
    rank: int = option(3, "Expected number of terms.", minimum=1)
    repeats: int = option(2, "The median of this many codings.", minimum=1)
    device: str = option("cuda", "The device.", metavar="cuda[:N]")


def measure(options: Options) -> Found:
    """Return a row per model. For all rows together: the name of the device, `card`, and torch's version.

    Raises ConfigurationError for an unknown CUDA device, or if its linear algebra differs from the host's.
    """
    import torch

    device = _cuda(options.device)
    card = torch.cuda.get_device_name(device)
    return Found(rows_of(options, device), {"card": card, "torch": torch.__version__})


def rows_of(options: Options, device: torch.device) -> list[dict[str, Any]]:
    """Return a row per model, measured on `device`.

    Raises ConfigurationError if the device's linear algebra differs from the processor's.
    """
    import torch

    codecs = {method: Svd(options.rank, method) for method in METHODS}  # type: ignore[arg-type]  # the literals above
    _check(codecs, device)
    rows = []
    for name in options.model:
        config = Config(lr=0.01, **MODELS[name])  # type: ignore[arg-type]  # literals
        model, step = _steps(config, device)
        passes = _milliseconds(step, options.repeats, device)
        matrices = [each.grad for each in model.parameters() if each.grad is not None and _is_coded(each, codecs["exact"])]
        taken = {
            method: _milliseconds(_coding(codec, matrices, device), options.repeats, device) for method, codec in codecs.items()
        }
        values = sum(map(torch.numel, matrices))
        rows.append({"model": name, "passes": passes, "matrices": len(matrices), "values": values, "coding": taken})
    return rows


def _check(codecs: dict[str, Svd], device: torch.device) -> None:
    from psnode.codecs.device.spectral_checks import problem

    for codec in codecs.values():
        if text := problem(codec, device):
            raise ConfigurationError(f"{codec!r} on {device}: {text}")


def _is_coded(parameter: nn.Parameter, codec: Svd) -> bool:
    return bool(codec.cut(tuple(parameter.shape))[0]) and parameter.nbytes >= Config().min_compress_bytes


def _steps(config: Config, device: torch.device) -> tuple[nn.Module, Callable[[], None]]:
    """Return a model on `device`, and a function that runs the model's forward and backward passes on one batch."""
    import torch

    from psnode.tasks.device import to_device

    task = make_task(config)
    torch.manual_seed(config.seed)
    model, data, rng = task.model().to(device), task.train_data(), np.random.default_rng(config.seed)
    batch = to_device(data.batch(rng.choice(len(data), min(config.batch_size, len(data)), replace=False), rng), device)

    def step() -> None:
        model.zero_grad()
        torch.autograd.backward(task.loss(model, batch)[0])

    return model, step


def _coding(codec: Svd, matrices: Sequence[torch.Tensor], device: torch.device) -> Callable[[], None]:
    """Return a function that encodes `matrices` with `codec`, takes their payloads, and writes the errors to separate tensors."""
    import torch

    from psnode.codecs.device.spectral import SpectralEncoder

    shapes = [tuple(each.shape) for each in matrices]
    encoders = [SpectralEncoder(codec, shape, device) for shape in shapes]
    flat = [each.reshape(-1).clone() for each in matrices]
    errors, out = [torch.empty_like(each) for each in flat], np.empty(max(map(codec.max_nbytes, shapes)), np.uint8)
    words = np.array(_KEY.words, np.uint64)

    def code() -> None:
        for encoder, matrix, error in zip(encoders, flat, errors, strict=True):
            encoder.encode(matrix, words, error)
            encoder.take(out)

    return code


def _milliseconds(action: Callable[[], None], repeats: int, device: torch.device) -> float:
    """Return the median milliseconds of `action`, including the wait for the device. A first call warms up."""
    import torch

    taken = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(taken[1:])


def _cuda(text: str) -> torch.device:
    import torch

    kind, _, number = text.partition(":")
    if kind != "cuda" or not (number.isdecimal() or text == "cuda"):
        raise ConfigurationError(f"--device {text}: name cuda or cuda:1")
    if int(number or 0) >= torch.cuda.device_count():
        raise ConfigurationError(f"--device {text}: this torch sees {torch.cuda.device_count()} CUDA devices (psnode doctor)")
    device = torch.device("cuda", int(number or 0))
    torch.cuda.set_device(device)
    return device


def _head(result: Result) -> str:
    return f"{result['card']}, torch {result['torch']}. Rank {result['rank']}, milliseconds, medians of {result['repeats']}."


COLUMNS = (
    Column("model", "{model}", left=True),
    Column("forward and backward", "{passes:.1f}"),
    Column("matrices", "{matrices}"),
    Column("values", "{values:,}"),
    *(Column(method, f"{{coding[{method}]:.1f}}") for method in METHODS),
)
STUDY = Study(Options, measure, COLUMNS, _head)


if __name__ == "__main__":
    sys.exit(main(STUDY))
