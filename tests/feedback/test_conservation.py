"""Conservation in whole jobs: the weights move by the sum of all gradients minus the workers' memories.

ef (decay=1)     applied sum + memories = sum of gradients
ef:rescale=true  as for ef, with learning rate times gradient, and memories times the last step's learning rate
dgc              applied sum + velocities = sum of the momentum-corrected gradients u
ecq:beta=1       applied sum + accumulated errors = sum of gradients

The loss is linear in the weights, so every gradient is known in advance. An epoch is one step, so each worker's gradient is used
once per step, whatever the shuffling. The applied sum is read from the master's weights, which SGD at learning rate 1 moves by
the decoded sum; memories are read from the checkpoint.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

from psnode.codecs import get_codec
from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.config.schemes import SCHEMES
from psnode.errors import ConfigurationError
from psnode.feedback import RULES, get_feedback
from psnode.jobs.job import run
from psnode.plans.groups import Plan
from psnode.records import checkpoint
from psnode.task import Task

Float64s = npt.NDArray[np.float64]

STEPS = 4
SHRINKAGE = 0.5  # factor of the learning rate per step
SHAPES = {"matrix": (48, 64), "square": (40, 40), "bias": (16,)}  # "bias" is sent uncoded
ROUNDING = 2e-6  # relative to the gradients' norm: a few float32 additions

CONSERVING = ["ef", "ef:rescale=true", "dgc:momentum=0.5"]
NOT_CONSERVING = {
    "none": "nothing is remembered",
    "ef:decay=0.5": "half of what is remembered is dropped every step",
    "ema:beta=0.5": "an average is sent, and what coding loses of it is not remembered",
    "momentum:momentum=0.5": "what coding loses of the momentum is not remembered",
}

DECAYING = "ecq:alpha=0.5,beta=0.5"  # conserves the sum with decaying weights


class Examples:
    """As many examples as workers; an example is its own index."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> torch.Tensor:
        return torch.from_numpy(indices)


class Linear(Task):
    """loss = <weights, G_i> for example i, so that its gradient is G_i for any weights."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        rng = np.random.default_rng(workers)
        self.workers = workers
        self.gradients = {
            name: torch.from_numpy(rng.standard_t(3, (workers, *shape)).astype(np.float32)) for name, shape in SHAPES.items()
        }

    def model(self) -> torch.nn.Module:
        return torch.nn.ParameterDict({name: torch.zeros(shape) for name, shape in SHAPES.items()})

    def train_data(self) -> Examples:
        return Examples(self.workers)

    def eval_data(self) -> Examples:
        return Examples(self.workers)

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, None]:
        products = [(self.gradients[name][batch].mean(0) * weight).sum() for name, weight in model.named_parameters()]
        return torch.stack(products).sum(), None

    def size(self, batch: torch.Tensor) -> int:
        return len(batch)


class Outcome(NamedTuple):
    """Sums over workers and steps, in the plan's order; `applied` and `gradients` are weighted with the learning rate.

    `momenta` are the momenta at the start of steps. `memories` are those after the last step, weighted with its learning
    rate.
    """

    applied: Float64s
    gradients: Float64s
    momenta: Float64s
    memories: Float64s

    @property
    def missing(self) -> float:
        """Return the norm of the part that is neither applied nor remembered, relative to the norm of the gradients."""
        return float(np.linalg.norm(self.applied + self.memories - self.gradients) / np.linalg.norm(self.gradients))


def config(folder: Path, scheme: str, feedback: str, workers: int, **changed: Any) -> Config:
    settings: dict[str, Any] = {"momentum": 0.0, "lr": 1.0, "downlink": "dense", "batch_size": 1, "max_steps": STEPS}
    settings |= {
        "local": workers,
        "threads": 1,
        "tensorboard": False,
        "eval_freq": 1,
        "keep_last": 0,
        "hash_every": 0,
        "log_interval": 1000,
    }
    return Config(train_dir=folder, scheme=scheme, feedback=feedback, **{**settings, **changed})


def outcome(folder: Path, scheme: str, feedback: str, workers: int, **changed: Any) -> Outcome:
    """Run a job, in which the learning rate halves at every step if memories are rescaled, and return its outcome."""
    task, shrinks = Linear(workers), "rescale" in feedback
    if shrinks:
        changed |= {"lr_schedule": "shrink", "lr_shrinkage": SHRINKAGE}
    run(config(folder, scheme, feedback, workers, **changed), task)
    plan = Plan.from_dict(json.loads((folder / "config.json").read_bytes())["plan"])
    steps = sorted((folder / checkpoint.CHECKPOINTS).glob("step-*"))
    saved = [checkpoint.Checkpoint.open(step) for step in steps]
    rates = [SHRINKAGE**step if shrinks else 1.0 for step in range(STEPS)]
    weights = saved[-1].tensors(checkpoint.MODEL)
    gradient = np.concatenate([task.gradients[tensor.name].double().sum(0).numpy().reshape(-1) for tensor in plan.tensors])
    owed = [memory(saved[-1], plan, name, workers) for name in ("residual", "velocity", "error")]
    return Outcome(
        applied=-workers * np.concatenate([weights[tensor.name].double().numpy().reshape(-1) for tensor in plan.tensors]),
        gradients=gradient * sum(rates),
        momenta=sum((memory(each, plan, "momentum", workers) for each in saved[:-1]), np.zeros(plan.size)),
        memories=rates[-1] * sum(owed),
    )


def memory(saved: checkpoint.Checkpoint, plan: Plan, name: str, workers: int) -> Float64s:
    """Return the sum of the workers' memories called `name`, with zeros where there is no memory."""
    found = np.zeros(plan.size)
    for rank in range(1, workers + 1):
        tensors = saved.tensors(checkpoint.worker_file(rank))
        for tensor, where in plan.slices().items():
            if (key := f"feedback/{name}/{tensor}") in tensors:
                found[where] += tensors[key].double().numpy()
    return found


def is_refused(folder: Path, scheme: str, feedback: str) -> bool:
    """Return True if scheme and feedback rule are refused together. Only two kinds of schemes may be refused: votes, and
    schemes whose codec is not sparse, under which no coordinate could keep a momentum.
    """
    try:
        resolve(config(folder, scheme, feedback, 1))
    except ConfigurationError:
        assert SCHEMES[scheme].aggregator != "mean" or not get_codec(SCHEMES[scheme].codec).sparse
        return True
    return False


@pytest.mark.sweep
@pytest.mark.parametrize("feedback", CONSERVING)
@pytest.mark.parametrize("scheme", [name for name, scheme in SCHEMES.items() if scheme.aggregator == "mean"])
def test_nothing_is_lost_between_what_was_applied_and_what_is_remembered(tmp_path: Path, scheme: str, feedback: str) -> None:
    if is_refused(tmp_path, scheme, feedback):
        return
    codec, corrects = get_codec(SCHEMES[scheme].codec), get_feedback(feedback).gathering is not None
    for workers in (1, 2, 3):
        found = outcome(tmp_path / str(workers), scheme, feedback, workers)
        if corrects:  # u = momentum * u before the step + gradient
            found = found._replace(gradients=found.gradients + 0.5 * found.momenta)
        assert found.missing < ROUNDING, f"{workers} workers"
        assert codec.lossless or found.memories.any()


CLIPPED = [
    ("dense", "ef"), ("topk", "ef"), ("qsgd", "ef"), ("countsketch", "ef"), ("onebit", "ef:rescale=true"),
    ("dgc", "dgc:momentum=0.5"),
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "feedback"), CLIPPED)
def test_what_is_clipped_away_is_remembered(tmp_path: Path, scheme: str, feedback: str) -> None:
    """Check that the part of a gradient that clipping removes stays in the memory. Two of four gradients are scaled down per
    round; the uncoded bias has a memory too.
    """
    found = outcome(tmp_path, scheme, feedback, 4, aggregator="mean:clip=median")
    if get_feedback(feedback).gathering is not None:
        found = found._replace(gradients=found.gradients + 0.5 * found.momenta)
    assert found.missing < ROUNDING
    bias = slice(-SHAPES["bias"][0], None)
    assert found.memories[bias].any()


@pytest.mark.sweep
@pytest.mark.parametrize("feedback", NOT_CONSERVING)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_listed_as_not_conserving_does_not(tmp_path: Path, scheme: str, feedback: str) -> None:
    if is_refused(tmp_path, scheme, feedback):
        return
    conserves = get_codec(SCHEMES[scheme].codec).lossless and get_feedback(feedback).gathering is None
    assert (outcome(tmp_path, scheme, feedback, 2, eval_freq=0).missing < ROUNDING) == conserves


@pytest.mark.parametrize("scheme", [name for name, scheme in SCHEMES.items() if scheme.aggregator == "majority"])
def test_a_vote_conserves_nothing(tmp_path: Path, scheme: str) -> None:
    assert outcome(tmp_path, scheme, SCHEMES[scheme].feedback, 3, eval_freq=0).missing > 0.1


ACCUMULATING = ["qsgd", "topk", "terngrad", "countsketch", "dithered", "minmax"]


@pytest.mark.parametrize("scheme", ACCUMULATING)
def test_an_accumulated_error_that_never_decays_loses_nothing(tmp_path: Path, scheme: str) -> None:
    found = outcome(tmp_path, scheme, "ecq:alpha=0.5,beta=1", 3)
    assert found.missing < ROUNDING
    assert found.memories.any()


@pytest.mark.parametrize("scheme", ["qsgd", "topk"])
def test_a_decaying_error_conserves_the_decayed_sum(tmp_path: Path, scheme: str) -> None:
    """Check that the memory is the sum over steps t of 0.5^(last - t) (gradients - applied); a step's applied sum is read
    from the weights.
    """
    found = outcome(tmp_path, scheme, DECAYING, 2)
    assert found.missing > 0.01
    steps = [checkpoint.Checkpoint.open(step) for step in sorted((tmp_path / checkpoint.CHECKPOINTS).glob("step-*"))]
    plan = Plan.from_dict(json.loads((tmp_path / "config.json").read_bytes())["plan"])
    weights = [np.zeros(plan.size)] + [
        np.concatenate([step.tensors(checkpoint.MODEL)[tensor.name].double().numpy().reshape(-1) for tensor in plan.tensors])
        for step in steps
    ]
    assert len(weights) == STEPS + 1
    lost = [found.gradients / STEPS + 2 * (after - before) for before, after in pairwise(weights)]
    owed = sum((0.5 ** (STEPS - 1 - step) * each for step, each in enumerate(lost)), np.zeros(plan.size))
    bias = slice(-SHAPES["bias"][0], None)
    assert np.abs(owed[bias]).max() < 1e-5
    assert np.linalg.norm(found.memories - owed) < ROUNDING * np.linalg.norm(found.gradients)


def test_what_is_clipped_away_of_a_compensated_gradient_is_remembered(tmp_path: Path) -> None:
    found = outcome(tmp_path, "qsgd", "ecq:alpha=0.5,beta=1", 4, aggregator="mean:clip=median")
    assert found.missing < ROUNDING


def test_every_rule_is_listed() -> None:
    assert {get_feedback(text).id for text in (*CONSERVING, *NOT_CONSERVING, DECAYING)} == set(RULES)
