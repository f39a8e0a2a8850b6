"""Causes of the loss that a coded downlink adds: a transformer under AdamW in one process, with each part of it separately.

    python scripts/downlink_lag.py --up polar:rate=1,block=16384 --down polar:rate=1,block=16384 --small coded --lead 0.8
    python scripts/downlink_lag.py --noise 0.74
    python scripts/downlink_lag.py --follow 0.7

The model is examples/charlm.py's transformer, with two workers of 8 windows each, AdamW at .002 with a cosine schedule, and
clipping by the global norm 1. The master updates the weights x. The workers compute gradients at y, their copy of x, and code
them with error feedback. The options determine how y follows x:

    --down SPEC --lead L   y += decode(encode(x + L u - y)), u the present update: psnode's downlink, with --downlink-lead
    --gain G               the decoded change times G
    --noise A              y = x + A times the root mean square of u times white noise; --correlation R: R from step to step
    --follow P             y += P (x - y): only delay, like that of a codec that decodes P times the change, but without its noise
    --down-gradient SPEC   the mean gradient coded once more, with a residual, in place of the weights

A SPEC is psnode's, or test:R, the Gaussian test channel of R bits: (1 - D) z + noise of variance D (1 - D), D = 4^-R. A row of
the table has four figures: the loss on the last tenth of the text, the mean training loss of the last 100 steps, the factor by
which both directions together send fewer bytes than float32, and, at several steps, (x - y) u / u^2. The last figure is the
number of updates by which y lags x; if it is negative, y is ahead of x.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from psnode.codecs import get_codec
from psnode.codecs.arrays import Floats
from psnode.task import load_task

EXAMPLE = str(Path(__file__).parents[1] / "examples" / "charlm.py")
LENGTH, BATCH, LR, CLIP, BETA1, BETA2, EPS = 64, 8, 2e-3, 1.0, 0.9, 0.999, 1e-8
SMALL = 1024  # values; smaller tensors travel uncoded, except with --small coded


class Channel:
    """A channel for vectors, which counts its bytes. It codes the values at `places`, and sends all other values unchanged."""

    def __init__(self, spec: str, places: np.ndarray[Any, Any], size: int, seed: int) -> None:
        self._spec, self._places, self._size = spec, places, size
        self._rng = np.random.default_rng(seed)
        self._codec = None if spec.startswith("test:") else get_codec(spec)
        self.nbytes = 0.0

    def __call__(self, z: Floats) -> Floats:
        """Return `z` as it arrives at the receiver."""
        out, part = z.copy(), z[self._places]
        self.nbytes += 4 * (self._size - part.size)
        if self._codec is not None:
            payload = self._codec.encode(part, rng=self._rng)
            self.nbytes += payload.nbytes
            out[self._places] = self._codec.decode(payload)
        else:
            rate = float(self._spec.removeprefix("test:"))
            d, size = 2 ** (-2 * rate), float(np.sqrt(np.mean(part * part)))
            self.nbytes += rate * part.size / 8
            noise = self._rng.standard_normal(part.size, dtype=np.float32)
            out[self._places] = ((1 - d) * part + np.float32(math.sqrt(d * (1 - d)) * size) * noise).astype(np.float32)
        return out


class Model:
    """The transformer with its parameters in a flat vector, and its data."""

    def __init__(self, seed: int, width: int) -> None:
        self.task = load_task(EXAMPLE, {"model": "transformer", "width": str(width), "length": str(LENGTH)})
        torch.manual_seed(seed)
        self.model = self.task.model()
        parameters = list(self.model.parameters())
        self.sizes = [parameter.numel() for parameter in parameters]
        self._flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self._gradient, start = torch.zeros(sum(self.sizes)), 0
        self.start: Floats = self._flat.numpy().copy()
        for parameter, size in zip(parameters, self.sizes, strict=True):
            parameter.data = self._flat[start : start + size].view(parameter.shape)
            parameter.grad = self._gradient[start : start + size].view(parameter.shape)
            start += size
        self.train, self._eval = self.task.train_data(), self.task.eval_data()

    def gradient(self, y: Floats, indices: np.ndarray[Any, Any]) -> tuple[float, Floats]:
        """Return the loss and the gradient at the weights y, on the batch `indices`."""
        self._flat.numpy()[:] = y
        self._gradient.zero_()
        loss = self._loss(*self.train.batch(indices, None))
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), self._gradient.numpy().copy()

    def evaluate(self, x: Floats) -> float:
        """Return the mean loss of the weights x on the last tenth of the text."""
        self._flat.numpy()[:] = x
        whole = len(self._eval) // 52 * 52
        with torch.no_grad():
            batches = [self._eval.batch(np.arange(first, first + 52), None) for first in range(0, whole, 52)]
            return float(np.mean([float(self._loss(*batch)) for batch in batches]))

    def _loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        return functional.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())


class Batches:
    """Source of the indices of batches. They are reshuffled in every epoch."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self._size, self._rng, self._order, self._next = size, rng, rng.permutation(size), 0

    def take(self) -> np.ndarray[Any, Any]:
        """Return the indices of the next batch."""
        if self._next + BATCH > self._size:
            self._order, self._next = self._rng.permutation(self._size), 0
        self._next += BATCH
        return self._order[self._next - BATCH : self._next]


def train(asked: argparse.Namespace) -> str:
    """Train once with the options `asked`, and return the row of the table."""
    model, rng = Model(asked.seed, asked.width), np.random.default_rng(asked.seed)
    x, y = model.start.copy(), model.start.copy()
    coded = np.concatenate([np.full(size, asked.small == "coded" or size >= SMALL) for size in model.sizes])
    places = np.flatnonzero(coded)
    ups = [Channel(asked.up, places, x.size, 100 * asked.seed + i) for i in range(asked.workers)] if asked.up else []
    spec = asked.down or asked.down_gradient
    down = Channel(spec, places, x.size, 100 * asked.seed + 99) if spec else None
    memories, owed, noise = [np.zeros_like(x) for _ in range(asked.workers)], np.zeros_like(x), np.zeros_like(x)
    mean, square, batches = np.zeros_like(x), np.zeros_like(x), Batches(len(model.train), rng)
    losses, lags = [], []
    for step in range(1, asked.steps + 1):
        g = np.zeros_like(x)
        for worker in range(asked.workers):
            loss, gradient = model.gradient(y, batches.take())
            losses.append(loss)
            if ups:
                due = gradient + memories[worker]
                gradient = ups[worker](due)
                memories[worker] = due - gradient
            g += gradient / asked.workers
        if asked.down_gradient and down is not None:
            due = g + owed
            g = down(due)
            owed = due - g
        norm = float(np.sqrt(np.sum(g.astype(np.float64) ** 2)))
        if norm > CLIP:
            g *= np.float32(CLIP / norm)
        mean += np.float32(1 - BETA1) * (g - mean)
        square += np.float32(1 - BETA2) * (g * g - square)
        lr = LR * 0.5 * (1 + math.cos(math.pi * (step - 1) / asked.steps))
        root = np.sqrt(square) / math.sqrt(1 - BETA2**step) + EPS
        u = (-lr / (1 - BETA1**step) * mean / root).astype(np.float32)
        x += u
        if asked.down and down is not None:
            y = y + np.float32(asked.gain) * down(x + np.float32(asked.lead) * u - y)
        elif asked.noise:
            r, white = asked.correlation, rng.standard_normal(x.size, dtype=np.float32)
            noise = np.float32(r) * noise + np.float32(math.sqrt(1 - r * r)) * white
            y = x + np.float32(asked.noise * float(np.sqrt(np.mean(u * u)))) * noise
        elif asked.follow < 1:
            y = y + asked.follow * (x - y)
        else:
            y = x + np.float32(asked.lead) * u if asked.lead else x.copy()
        if 5 * step % asked.steps == 0 and step < asked.steps:
            lags.append(float((x - y)[places] @ u[places] / (u[places] @ u[places])))
    whole = 4 * x.size * asked.steps
    up = sum(channel.nbytes for channel in ups) / asked.workers if ups else whole
    sent = up + (down.nbytes if down is not None else whole)
    behind = " ".join(f"{lag:.2f}" for lag in lags)
    return f"| {model.evaluate(x):.4f} | {np.mean(losses[-100:]):.4f} | {2 * whole / sent:.1f} | {behind} |"


def main(given: Sequence[str] | None = None) -> int:
    """Train and print a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--up", "--down", "--down-gradient"):
        parser.add_argument(flag, metavar="SPEC")
    parser.add_argument("--small", choices=("plain", "coded"), default="plain")
    for flag, value in (("--lead", 0.0), ("--gain", 1.0), ("--noise", 0.0), ("--correlation", 0.0), ("--follow", 1.0)):
        parser.add_argument(flag, type=float, default=value)
    for name, count in (("--seed", 1), ("--steps", 700), ("--workers", 2), ("--width", 96)):
        parser.add_argument(name, type=int, default=count)
    torch.set_num_threads(1)
    print(train(parser.parse_args(given)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
