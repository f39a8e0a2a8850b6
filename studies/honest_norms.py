"""`python -m studies.honest_norms`: gradients that the norm cap refuses in honest runs with heavy tails.

The study trains small torch models on heavy-tailed data, each with 1 to 4 workers and its own seed. It passes the norms of all
gradients, by tensor, to the master's rule (psnode.exchange.shard.norm_verdicts), as if every round had a gradient of every
worker. No job is started, nothing is coded, and the weights follow the mean of all gradients, including refused ones. A row
shows a kind of data: the number of runs, of gradients, and of gradients that three rules refuse. The first rule is the default.
The second is only the bound of the default, 1e6 times the largest gradient accepted before, without the limit at which squares
leave the range of float32. The third is --norm-cap 10.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from psnode.config.declaration import option
from psnode.config.effects import AUTO
from psnode.exchange.shard import norm_verdicts
from psnode.exchange.shard.norm_verdicts import Closing, Judge
from psnode.plans.groups import Tensor
from psnode.plans.part import all_of
from psnode.plans.rule import make_plan
from studies.harness import Column, Found, Study, main

STEPS, BATCH, RUNS = 40, 16, 1200
Loss = Callable[[int, np.random.Generator], torch.Tensor]


class Trial(NamedTuple):
    """A model, the loss of a batch by step number, and the learning rate by step number."""

    model: nn.Module
    loss: Loss
    lr: Callable[[int], float] = lambda step: 0.1


def _logistic(bias: float, rng: np.random.Generator, features: Callable[[np.random.Generator], np.ndarray]) -> Trial:
    model = nn.Linear(12, 1)
    nn.init.constant_(model.bias, bias)

    def loss(step: int, rng: np.random.Generator) -> torch.Tensor:
        x = torch.from_numpy(features(rng).astype(np.float32))
        y = torch.from_numpy((rng.random(BATCH) < 1 / 256).astype(np.float32))
        return F.binary_cross_entropy_with_logits(model(x)[:, 0], y)

    return Trial(model, loss)


def rare(rng: np.random.Generator) -> Trial:
    """Return logistic regression in which one example in 256 is positive. The initial bias is 0, -7 or -80."""
    return _logistic(float(rng.choice([0, -7, -80])), rng, lambda rng: rng.standard_normal((BATCH, 12)))


def sparse(rng: np.random.Generator) -> Trial:
    """Return logistic regression on features of which 99 in 100 are zero and all others have log-normal sizes."""
    return _logistic(-4.0, rng, lambda rng: (rng.random((BATCH, 12)) < 0.01) * np.exp(3 * rng.standard_normal((BATCH, 12))))


def tokens(rng: np.random.Generator) -> Trial:
    """Return an embedding whose tokens follow Zipf's law."""
    model = nn.Sequential(nn.Embedding(500, 8), nn.Linear(8, 500))

    def loss(step: int, rng: np.random.Generator) -> torch.Tensor:
        drawn = torch.from_numpy(np.minimum(rng.zipf(1.3, (2, BATCH)), 500) - 1)
        return F.cross_entropy(model(drawn[0]), drawn[1])

    return Trial(model, loss)


def scale(rng: np.random.Generator) -> Trial:
    """Return a model with a scalar scale. The scale is zero, and rarely used, at first; the learning rate warms up from 0."""
    model = nn.ParameterDict({"w": nn.Parameter(torch.randn(20)), "s": nn.Parameter(torch.zeros(()))})

    def loss(step: int, rng: np.random.Generator) -> torch.Tensor:
        x = torch.from_numpy(rng.standard_normal((BATCH, 20)).astype(np.float32))
        used = float(step % 13 == 5 or step > 30)
        found: torch.Tensor = ((x @ model["w"] - 1) ** 2).mean() * 1e-3 + used * model["s"] * x.square().sum()
        return found

    return Trial(model, loss, lambda step: 0.01 * min(1.0, step / 10))


def unfrozen(rng: np.random.Generator) -> Trial:
    """Return a model with a layer that gets no gradient in the first 20 steps."""
    first, second = nn.Linear(10, 10), nn.Linear(10, 1)

    def loss(step: int, rng: np.random.Generator) -> torch.Tensor:
        x = torch.from_numpy(rng.standard_normal((BATCH, 10)).astype(np.float32))
        hidden = first(x) if step >= 20 else first(x).detach()
        late: torch.Tensor = hidden.square().mean() * (step >= 20)
        found: torch.Tensor = (second(torch.relu(hidden)) * (1e-12 if step < 20 else 1.0)).square().mean() + late
        return found

    return Trial(nn.ModuleList([first, second]), loss)


def spikes(rng: np.random.Generator) -> Trial:
    """Return least squares with clipped gradients, on Cauchy features and targets; one batch in ten is multiplied by 1000."""
    model = nn.Linear(6, 1)

    def loss(step: int, rng: np.random.Generator) -> torch.Tensor:
        size = 1000.0 if rng.random() < 0.1 else 1.0
        x = torch.from_numpy((size * rng.standard_cauchy((BATCH, 7))).astype(np.float32))
        found: torch.Tensor = (model(x[:, :6])[:, 0] - x[:, 6]).square().mean()
        return found

    return Trial(model, loss, lambda step: -1.0)


def counts(rng: np.random.Generator) -> Trial:
    """Return Poisson regression with clipped gradients, on features with Student's t distribution.

    Its log link makes the loss exponential in the weights.
    """
    model = nn.Linear(4, 1)

    def loss(step: int, rng: np.random.Generator) -> torch.Tensor:
        x = torch.from_numpy(np.clip(rng.standard_t(1.5, (BATCH, 4)), -40, 40).astype(np.float32))
        return F.poisson_nll_loss(model(x)[:, 0], torch.ones(BATCH))

    return Trial(model, loss, lambda step: -0.5)


def recurrent(rng: np.random.Generator) -> Trial:
    """Return a linear recurrence of 5 to 59 steps, with clipped gradients. They grow exponentially with the number of steps."""
    model = nn.ParameterDict({"a": nn.Parameter(torch.tensor(1.6)), "b": nn.Parameter(torch.tensor(0.1))})

    def loss(step: int, rng: np.random.Generator) -> torch.Tensor:
        state = torch.zeros(BATCH)
        for value in rng.standard_normal((int(rng.integers(5, 60)), BATCH)).astype(np.float32):
            state = model["a"] * state + model["b"] * torch.from_numpy(value)
        return (state - 1).abs().mean()

    return Trial(model, loss, lambda step: -0.01)


def accumulated(rng: np.random.Generator) -> Trial:
    """Return a two-layer classifier of three classes, of which one is rare. Its batches have eight times the usual size."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def loss(step: int, rng: np.random.Generator) -> torch.Tensor:
        x = torch.from_numpy(rng.standard_normal((8 * BATCH, 8)).astype(np.float32))
        y = torch.from_numpy(rng.choice(3, 8 * BATCH, p=[0.6, 0.398, 0.002]))
        return F.cross_entropy(model(x + 3 * (y == 2)[:, None]), y)

    return Trial(model, loss)


KINDS = (rare, sparse, tokens, scale, unfrozen, spikes, counts, recurrent, accumulated)


def rounds(kind: Callable[[np.random.Generator], Trial], seed: int, workers: int) -> Iterator[list[list[float]]]:
    """Yield for each step the norms of its gradients, by worker and tensor.

    A negative learning rate -r means that the rate is r, and that the mean gradient is clipped to norm 1.
    """
    torch.manual_seed(seed)
    trial, rngs = kind(np.random.default_rng(seed)), [np.random.default_rng((seed, rank)) for rank in range(workers)]
    parameters = list(trial.model.parameters())
    for step in range(STEPS):
        found, total = [], [torch.zeros_like(parameter) for parameter in parameters]
        for rng in rngs:
            grads = torch.autograd.grad(trial.loss(step, rng), parameters, allow_unused=True)
            given = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
            if not all(bool(each.isfinite().all()) for each in given):
                given = [torch.zeros_like(each) for each in given]  # a worker would send no gradient for this tensor
            found.append([float(each.double().norm()) for each in given])
            total = [a + b / workers for a, b in zip(total, given, strict=True)]
        yield found
        rate = trial.lr(step)
        norm = math.sqrt(sum(float(each.double().norm()) ** 2 for each in total))
        factor = rate if rate >= 0 else -rate / max(1.0, norm)
        with torch.no_grad():
            for parameter, change in zip(parameters, total, strict=True):
                parameter.sub_(factor * change)


def refused(played: list[list[list[float]]], cap: float) -> int:
    """Return the number of gradients that a cap of `cap` refuses.

    `played`: for each round, the norms of the gradients by worker and group.
    """
    groups, count = len(played[0][0]), 0
    plan = make_plan([Tensor(f"t{i}.w", (1,)) for i in range(groups)], "identity", group_by="layer", min_compress_bytes=0)
    judge = Judge(all_of(plan), cap)
    for step, pushes in enumerate(played, 1):
        held = set()
        for group in range(groups):
            for rank, norms in enumerate(pushes, 1):
                if judge.suspects(group, rank, step, norms[group]):
                    held.add((group, rank))
        for group in range(groups):
            waits = any(where == group for where, _ in held)
            judge.hear(Closing(group, step, 0.0), waits=waits, alone=len(pushes) == 1)
        count += len({rank for _, rank in held if (rank, step) in judge.verdicts})
    return count


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.honest_norms`."""

    runs: int = option(RUNS, "Runs, of all kinds of data in turn.", minimum=1)


def measure(options: Options) -> Found:
    """Return a row for each kind of data, and a row with their sums."""
    torch.set_num_threads(1)
    rows = [{"data": kind.__name__, **_counts(place, options.runs)} for place, kind in enumerate(KINDS)]
    sums = {name: sum(row[name] for row in rows) for name in rows[0] if name != "data"}
    return Found([*rows, {"data": "all", **sums}])


def _counts(place: int, runs: int) -> dict[str, Any]:
    counts = {"runs": 0, "gradients": 0, "default": 0, "unlimited": 0, "capped": 0}
    limit = norm_verdicts.IMPOSSIBLE
    for seed in range(place, runs, len(KINDS)):
        played = list(rounds(KINDS[place], seed, 1 + seed // len(KINDS) % 4))
        counts["runs"] += 1
        counts["gradients"] += STEPS * len(played[0])
        counts["default"] += refused(played, AUTO)
        norm_verdicts.IMPOSSIBLE = 0.0
        counts["unlimited"] += refused(played, AUTO)
        norm_verdicts.IMPOSSIBLE = limit
        counts["capped"] += refused(played, 10.0)
    return counts


COLUMNS = (
    Column("data", "{data}", left=True),
    Column("runs", "{runs}"),
    Column("gradients", "{gradients}"),
    Column("default", "{default}"),
    Column("without the limit", "{unlimited}"),
    Column("--norm-cap 10", "{capped}"),
)
STUDY = Study(Options, measure, COLUMNS)


if __name__ == "__main__":
    sys.exit(main(STUDY))
