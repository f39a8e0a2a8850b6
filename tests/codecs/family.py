"""Subjects of the contract tests: every registered codec, variants and chains of codecs, and the input arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from psnode.codecs import Codec, Payload, available, get_codec, table
from psnode.codecs.base import RandomSource
from psnode.codecs.sinks import Subtracted
from psnode.codecs.sources import Accumulated

Floats = npt.NDArray[np.float32]

# variants and chains; those with an unknown stage are left out
VARIANTS = [
    "qsgd:levels=1",
    "qsgd:levels=2,bucket=7,norm=max",
    "qsgd:levels=255,bucket=100000",
    "qsgd:factors=true",
    "qsgd:levels=300,bucket=1024,factors=true+zstd",
    "qsgd+zstd",
    "qsgd:levels=300+zstd",
    "bf16+zstd",
    "svd:method=deflated",
    "svd+qsgd",
    "svd:rank=1+fp16+zstd",
    "nuqsgd:bucket=1024",
    "topk+qsgd:levels=7",
    "topk+qsgd+zstd",
    "randk+bf16",
    "qsgd+ans",
    "qsgd:levels=1+rice",
    "lss:bits=3,buckets=0.1+ans",
    "topk:ratio=0.1+lss+ans",
    "sketchml:bins=32,rows=0+ans",
    "topk:ratio=0.1+sketchml+ans",
    "fourier:budget=0.3,block=256",
]


def ids_in(spec: str) -> list[str]:
    """Return the ids of the stages of a spec."""
    return [stage.partition(":")[0] for stage in spec.split("+")]


FILES: list[str] = []  # values of pytest --codec
CHOSEN: list[str] = []  # the specs of these codecs, which are then the only subjects


def forms() -> list[str]:
    """Return the codecs to test: those of `pytest --codec` if given, otherwise every codec id and the variants that can be
    built.
    """
    if CHOSEN:
        return CHOSEN
    known = {*available(), *(name for name, entry in table.LOSSLESS.items() if entry.target)}
    return [*available(), *(spec for spec in VARIANTS if known.issuperset(ids_in(spec)))]


def contractive_forms() -> list[str]:
    """Return the contractive forms of `forms`, except for codecs that are already contractive."""
    return [f"contractive({spec})" for spec in forms() if get_codec(spec).contractive() != get_codec(spec)]


def fed_back(codec: Codec, x: Floats, rng: RandomSource, residual: Floats) -> Payload:
    """Take a step of error feedback: add x to `residual`, encode the sum, and subtract the decoded values from `residual`."""
    source = Accumulated([(0, x.reshape(-1))], residual)
    return codec.encode(source, rng, sink=Subtracted(residual))


def gaussian(*shape: int, seed: int = 0) -> Floats:
    """Return samples of N(0, 1)."""
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


def student(*shape: int, seed: int = 0) -> Floats:
    """Return samples of Student's t distribution with 3 degrees of freedom."""
    return np.asarray(np.random.default_rng(seed).standard_t(3, shape), np.float32)


def recorded() -> Floats:
    """Return a real gradient, float32 of shape (24, 24, 3, 3), of which 89 % are exact zeros.

    It is the corner of layer4.0.conv2 of torchvision's resnet18, at its third step on 16 handwritten digits of shape 3x32x32.
    """
    return np.asarray(np.load(Path(__file__).with_name("recorded.npy")), np.float32)


def spikes(n: int) -> Floats:
    """Return n zeros, except for the largest finite float32 in the middle."""
    x = np.zeros(n, np.float32)
    x[n // 2] = np.finfo(np.float32).max
    return x


SHAPES = [(), (0,), (3, 0, 2), (1,), (1, 1), (7,), (511,), (512,), (513,), (1031,), (40, 24), (24, 40), (8, 3, 3, 3), (1, 300)]

VALUES = {
    "zeros": np.zeros(700, np.float32),
    "negative zeros": np.full(700, -0.0, np.float32),
    "one-hot": spikes(700),
    "full scale": np.finfo(np.float32).max * np.sign(gaussian(700)),
    "denormals": (gaussian(30, 20) * 1e-41).astype(np.float32),
    "smallest": np.full(600, np.float32(1e-45)),
    "1e-30": gaussian(30, 20) * np.float32(1e-30),
    "1e30": gaussian(30, 20) * np.float32(1e30),
    "heavy tails": student(30, 20) ** 3,
    "mixed scales": gaussian(700) * np.float32(10.0) ** np.random.default_rng(1).integers(-30, 30, 700).astype(np.float32),
    "constant": np.full((20, 30), 0.1, np.float32),
    "recorded": recorded(),
}

STATED = {"gaussian": gaussian(40, 60), "student": student(40, 60), "recorded": recorded()}
