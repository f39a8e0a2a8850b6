"""`python -m studies.atomo`: variance and coding time of cheaper bases for spectral ATOMO, on gradients of real models.

The study takes two gradients, those of batches at successive steps of a training. It measures the seconds in which one core
codes all matrices of the second gradient, once with the exact spectrum and once with the scheme's method. Tensors of the same
shape whose names differ only in numbers are of one kind. For the first, middle and last tensor of each kind, the study states
the variance of the estimate in several bases, relative to the least variance of any basis:

* deflated: the scheme's method
* single: eigenvectors of the uncorrected float32 Gram matrix, with lengths measured separately
* earlier: the singular vectors of the previous gradient
* once, twice: the vectors of `earlier` after one and two multiplications by the Gram matrix, each then orthogonalised
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from psnode.bench.record import gradients
from psnode.codecs.arrays import Float64s, Floats, Shape
from psnode.codecs.lowrank.atoms import optimal_probabilities, sampling_error
from psnode.codecs.lowrank.blas_threads import one_thread
from psnode.codecs.lowrank.spectrum import NOISE, matricise
from psnode.codecs.rng import Key
from psnode.codecs.svd import Svd
from psnode.config import Config
from psnode.config.declaration import option
from psnode.tasks import gpt2
from studies.harness import Column, Found, Result, Row, Study, main

METHODS: tuple[Literal["exact", "deflated"], ...] = ("exact", "deflated")
COSTS = ("deflated", "single", "earlier", "once", "twice")
MODELS = {
    "ResNet-18": {"network": "ResNet18", "dataset": "synthetic", "synthetic_shape": (3, 32, 32), "batch_size": 32},
    "GPT-2, 124 M": {
        "task": str(Path(gpt2.__file__)), "task_option": ("context=256",), "batch_size": 4,
    },
}  # fmt: skip
_KEY = Key.derive(1, "bench")


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.atomo`."""

    model: tuple[str, ...] = option(tuple(MODELS), "Its gradients; repeat.", choices=tuple(MODELS), repeated=True)
    steps: int = option(10, "Steps of training before the gradient.", minimum=1)
    rank: int = option(3, "Expected number of terms.", minimum=1)
    repeats: int = option(2, "The fastest of this many codings.", minimum=1)


def measure(options: Options) -> Found:
    """Return a row for each kind of tensor of a model.

    For all rows together: `seconds`, the least time to code a gradient, by model and method.
    """
    rows, seconds = [], {}
    for name in options.model:
        config = Config(lr=0.01, **MODELS[name])  # type: ignore[arg-type]  # the literals above
        before, now = (_matrices(each) for each in gradients(config, options.steps, 2))
        with one_thread():
            found = _measured(before, now, options.rank, options.repeats)
        rows += [{"model": name, **row} for row in found]
        seconds[name] = {method: sum(row["seconds"][method] for row in found) for method in METHODS}
    return Found(rows, {"seconds": seconds})


def _matrices(gradient: Mapping[str, Floats]) -> dict[str, Floats]:
    return {
        name: each for name, each in gradient.items() if matricise(each.shape)[0] and each.nbytes >= Config().min_compress_bytes
    }


def _measured(before: Mapping[str, Floats], now: Mapping[str, Floats], rank: int, repeats: int) -> list[dict[str, Any]]:
    kinds: dict[tuple[str, Shape], list[str]] = {}
    for name, tensor in now.items():
        kinds.setdefault((re.sub(r"\d+", "*", name), tensor.shape), []).append(name)
    rows = []
    for (kind, shape), names in kinds.items():
        some = [names[at] for at in sorted({0, len(names) // 2, len(names) - 1})]
        costs = [_costs(before[name], now[name], rank) for name in some]
        row: dict[str, Any] = {"kind": kind, "shape": shape, "tensors": len(names)}
        row |= {key: [each[key] for each in costs] for key in costs[0]}
        rows.append(
            row | {"seconds": {method: _seconds([now[name] for name in names], rank, method, repeats) for method in METHODS}}
        )
    return rows


def _seconds(tensors: Sequence[Floats], rank: int, method: Literal["exact", "deflated"], repeats: int) -> float:
    codec = Svd(rank, method)
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        for tensor in tensors:
            codec.encode(tensor, _KEY)
        taken.append(time.perf_counter() - start)
    return min(taken)


def _costs(before: Floats, now: Floats, rank: int) -> dict[str, float]:
    """Return `omega`, the least variance relative to the energy, and by basis the variance relative to the least one.

    If the tensor has too few terms to lose any of them, omega is 0 and all costs are 1.
    """
    earlier, matrix = _short_in_front(before), _short_in_front(now)
    gram = matrix @ matrix.T
    lengths = np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0))
    energy, least = float(np.trace(gram)), _variance(lengths[lengths > NOISE * lengths[-1]], rank)
    if not least:
        return {"omega": 0.0} | dict.fromkeys(COSTS, 1.0)
    deflated = Svd(rank, "deflated").omega(now, np.array(_KEY.words, np.uint64)) * energy
    single = np.linalg.eigh((matrix.astype(np.float32) @ matrix.astype(np.float32).T).astype(np.float64))[1]
    bases = zip(("single", "earlier", "once", "twice"), [single, *_iterated(earlier, gram)], strict=True)
    costs = {name: _variance(np.sqrt(np.maximum(np.sum(basis * (gram @ basis), axis=0), 0)), rank) for name, basis in bases}
    return {"omega": least / energy, "deflated": deflated / least} | {name: cost / least for name, cost in costs.items()}


def _iterated(earlier: Float64s, gram: Float64s) -> Iterator[Float64s]:
    """Yield three bases as columns: the singular vectors of `earlier`, descending, and these after one and two iterations.

    An iteration multiplies the vectors by `gram` and orthogonalises them.
    """
    basis = np.linalg.eigh(earlier @ earlier.T)[1][:, ::-1]
    yield basis
    for _ in range(2):
        basis = np.linalg.qr(gram @ basis)[0]
        yield basis


def _short_in_front(tensor: Floats) -> Float64s:
    _, m, n = matricise(tensor.shape)
    matrix = tensor.reshape(m, n).astype(np.float64)
    return matrix.T if m > n else matrix


def _variance(lengths: Float64s, rank: int) -> float:
    return sampling_error(lengths, optimal_probabilities(lengths, rank))


def _head(result: Result) -> str:
    return f"One core; rank {result['rank']}, gradients after {result['steps']} steps."


def _foot(result: Result) -> str:
    seconds = [
        f"{name}: a step is coded in {each['deflated']:.2f} s, by the exact spectrum in {each['exact']:.2f} s."
        for name, each in result["seconds"].items()
    ]
    return " ".join([*seconds, "Of omega and the costs, the largest of a kind; the costs are variances over the optimum's."])


def _cost(name: str) -> Callable[[Row], str]:
    return lambda row: f"{max(row[name]):.3g}" if max(row[name]) >= 10 else f"{max(row[name]):.3f}"


COLUMNS = (
    Column("tensors", "`{kind}`", left=True),
    Column("", lambda row: f"{row['tensors']} of {' x '.join(map(str, row['shape']))}", left=True),
    Column("exact, s", "{seconds[exact]:.3f}"),
    Column("deflated, s", "{seconds[deflated]:.3f}"),
    Column("omega", lambda row: f"{max(row['omega']):.3g}"),
    *(Column(cost, _cost(cost)) for cost in COSTS),
)
STUDY = Study(Options, measure, COLUMNS, _head, _foot, tables="model")


if __name__ == "__main__":
    sys.exit(main(STUDY))
