"""`python -m studies.atomo_bases`: ATOMO's bases at equal bytes on recorded gradients: singular vectors, coordinates, cosines.

    psnode bench record --output lenet.safetensors --network LeNet --dataset mnist --data-dir DIR --steps 200
    python -m studies.atomo_bases --gradient lenet.safetensors ...

From each gradient, the study takes the matrices that `svd` sends as terms. The rank of svd determines the bytes of each matrix.
`entrywise` and `fourier` get the largest budgets whose payloads need no more bytes. Bits are those of payloads, and omega is
the variance of the estimate relative to the squared norm of the gradient; both are sums over the matrices. Further tables show
the variance by block size, and speeds on one core.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

from psnode.codecs import Codec, get_codec
from psnode.codecs.arrays import Floats
from psnode.codecs.entrywise import Entrywise
from psnode.codecs.fourier import Fourier
from psnode.codecs.rng import Key
from psnode.codecs.svd import Svd
from psnode.config.declaration import ABSENT, option
from studies.harness import Column, Found, Result, Study, at, main, table

RANKS = (1, 3, 8)
BLOCKS = (64, 128, 256, 512, 1024, 4096)
LEAST = 4096  # bytes of the smallest matrix that is coded
KEY = Key.derive(1, "bench")
DECODES = 5
SIZE = 1 << 22


class Cost(NamedTuple):
    """Bytes of payloads, and the expected and the measured squared error of decoding, each summed over several matrices."""

    nbytes: int
    expected: float
    measured: float

    def __add__(self, other: object) -> Cost:
        assert isinstance(other, Cost)
        return Cost(self.nbytes + other.nbytes, self.expected + other.expected, self.measured + other.measured)


def energy(x: Floats) -> float:
    """Return ||x||^2."""
    return float(np.sum(np.square(x, dtype=np.float64)))


def cost(codec: Svd | Entrywise | Fourier, x: Floats) -> Cost:
    """Return the cost of one matrix.

    It consists of the bytes of one payload, omega ||x||^2, and the mean squared error of DECODES decodes.
    """
    payloads = [codec.encode(x, Key.derive(1, "bench", number)) for number in range(DECODES)]
    errors = [energy(codec.decode(payload) - x) for payload in payloads]
    return Cost(payloads[0].nbytes, codec.omega(x) * energy(x), float(np.mean(errors)))


def as_long(make: Callable[[float], Codec], x: Floats, nbytes: int) -> float:
    """Return the largest budget for which the payload of `x` has at most `nbytes` bytes. It is found by bisection."""
    low, high = 1.0, float(x.size)
    for _ in range(24):
        middle = (low * high) ** 0.5
        if make(middle).encode(x, KEY).nbytes <= nbytes:
            low = middle
        else:
            high = middle
        if high < 1.003 * low:
            break
    return low


def matrices(file: Path) -> dict[str, Floats]:
    """Return the tensors in `file` that svd sends as terms at every rank."""
    return {
        name: x for name, x in load_file(file).items() if x.nbytes >= LEAST and all(Svd(rank).cut(x.shape)[0] for rank in RANKS)
    }


def at_equal_bytes(tensors: Mapping[str, Floats]) -> list[tuple[int, dict[str, Cost], list[str]]]:
    """Return for each rank of svd: the rank, the costs of each basis, and the names of some matrices.

    On these matrices, cosines have less variance than coordinates.
    """
    found = []
    for rank in RANKS:
        total = {name: Cost(0, 0.0, 0.0) for name in ("svd", "entrywise", "fourier")}
        better = []
        for name, x in tensors.items():
            spectral = cost(Svd(rank), x)
            entries = cost(Entrywise(as_long(Entrywise, x, spectral.nbytes)), x)
            cosines = cost(Fourier(as_long(Fourier, x, spectral.nbytes)), x)
            for key, each in zip(total, (spectral, entries, cosines), strict=True):
                total[key] += each
            if cosines.expected < entries.expected:
                better.append(name)
        found.append((rank, total, better))
    return found


def over_entrywise(tensors: Mapping[str, Floats]) -> list[float]:
    """Return the variance of `fourier` relative to that of `entrywise`, for each block size in BLOCKS.

    Both codecs have their default budgets.
    """
    entries = sum(Entrywise().omega(x) * energy(x) for x in tensors.values())
    return [sum(Fourier(block=block).omega(x) * energy(x) for x in tensors.values()) / entries for block in BLOCKS]


def likeness(tensors: Mapping[str, Floats]) -> float:
    """Return the likeness of neighbouring values: the sum of x_i x_(i+1) over all neighbours in a tensor, divided by ||x||^2.

    Both sums extend over all tensors.
    """
    flat = [x.reshape(-1).astype(np.float64) for x in tensors.values()]
    return float(sum(x[1:] @ x[:-1] for x in flat) / sum(x @ x for x in flat))


def speed(codec: Codec, x: Floats) -> tuple[float, float, float]:
    """Return the GB/s of float32 in encode, decode and decode_add, each for the fastest of seven calls."""
    payload, out = codec.encode(x, KEY), np.zeros_like(x)
    buffer = np.empty(codec.max_nbytes(x.shape), np.uint8)
    calls: Sequence[Callable[[], object]] = (
        lambda: codec.encode(x, KEY, out=buffer),
        lambda: codec.decode(payload, out),
        lambda: codec.decode_add(payload, out),
    )
    found = []
    for call in calls:
        seconds = []
        for _ in range(7):
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
        found.append(x.nbytes / 1e9 / min(seconds))
    return found[0], found[1], found[2]


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.atomo_bases`."""

    gradient: tuple[Path, ...] = option(ABSENT, "A file of psnode bench record; repeat.", repeated=True, metavar="FILE")


def measure(options: Options) -> Found:
    """Return a row per gradient and rank.

    For all rows together: `blocks`, a row per gradient, and `speeds`, a row of GB/s per codec.
    """
    gradients = {file.stem: matrices(file) for file in options.gradient}
    rows = [row for name, tensors in gradients.items() for row in _rows(name, tensors)]
    blocks = [_blocks(name, tensors) for name, tensors in gradients.items()]
    x = np.random.default_rng(1).standard_normal(SIZE).astype(np.float32)
    specs = ("entrywise", "fourier", "fourier:block=512", "fourier:block=4096")
    return Found(rows, {"blocks": blocks, "speeds": [{"spec": spec, "gbps": speed(get_codec(spec), x)} for spec in specs]})


def _rows(name: str, tensors: Mapping[str, Floats]) -> list[dict[str, Any]]:
    size, total = sum(x.size for x in tensors.values()), sum(energy(x) for x in tensors.values())
    return [
        {
            "of": name, "rank": rank, "tensors": len(tensors), "better": len(better),
            "bits": {basis: 8 * each.nbytes / size for basis, each in costs.items()},
            "omega": {basis: each.expected / total for basis, each in costs.items()},
            "measured": {basis: each.measured / total for basis, each in costs.items()},
        }
        for rank, costs, better in at_equal_bytes(tensors)
    ]  # fmt: skip


def _blocks(name: str, tensors: Mapping[str, Floats]) -> dict[str, Any]:
    flat = np.concatenate([x.reshape(-1) for x in tensors.values()])
    ratios = dict(zip(map(str, BLOCKS), over_entrywise(tensors), strict=True))
    return {"of": name, "values": flat.size, "zeros": float(np.mean(flat == 0)), "alike": likeness(tensors), "over": ratios}


def _foot(result: Result) -> str:
    columns = [Column("gradient", "{of}", left=True), Column("values", "{values:,}"), Column("zeros", "{zeros:.0%}")]
    columns.append(Column("alike", "{alike:.2f}"))
    columns += [Column(str(block), at(".3f", "over", str(block))) for block in BLOCKS]
    names = ("encode, GB/s", "decode", "decode_add")
    speeds = [Column(name, at(".2f", "gbps", number)) for number, name in enumerate(names)]
    second = table([Column("codec", "`{spec}`", left=True), *speeds], result["speeds"])
    return f"{table(columns, result['blocks'])}\n\n{second}"


def _all(name: str) -> Column:
    titles = {"bits": "bits a value", "measured": "measured"}
    return Column(titles[name], lambda row: " / ".join(f"{value:.3g}" for value in row[name].values()))


COLUMNS = (
    Column("gradient", "{of}", left=True),
    Column("rank", "{rank}"),
    _all("bits"),
    Column("svd", "{omega[svd]:.3g}"),
    Column("entrywise", "{omega[entrywise]:.3g}"),
    Column("fourier", "{omega[fourier]:.3g}"),
    _all("measured"),
    Column("fourier is better on", "{better} of {tensors}", left=True),
)
STUDY = Study(Options, measure, COLUMNS, foot=_foot)


if __name__ == "__main__":
    sys.exit(main(STUDY))
