"""Linear codecs in a job: the workers of a step share a key, and the master decodes only the sum of their payloads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psnode.codecs import get_codec
from psnode.codecs.rng import Key
from psnode.config import Config
from psnode.jobs.job import run
from psnode.plans.groups import Plan
from psnode.records import checkpoint
from psnode.tasks.classification import Classification

LR = 0.5
SEED = 1


def initial(plan: Plan) -> np.ndarray:
    """Return the parameters with which every rank starts, as one vector."""
    task = Classification("LeNet", "digits", seed=SEED)
    torch.manual_seed(SEED)
    tensors = task.model().state_dict()
    return np.concatenate([tensors[tensor.name].double().numpy().reshape(-1) for tensor in plan.tensors])


def config(folder: Path, scheme: str, **changed: Any) -> Config:
    """Return the settings of one step of three workers on digits."""
    settings = {"max_steps": 1, "local": 3, "batch_size": 8, "threads": 1, "tensorboard": False, "seed": SEED}
    return Config(train_dir=folder, scheme=scheme, **{**settings, **changed})


def weights(folder: Path, scheme: str, plan: Plan) -> np.ndarray:
    """Return all parameters as one vector, in the plan's order, after a step without momentum and feedback."""
    run(config(folder, scheme, feedback="none", momentum=0.0, lr=LR))
    newest = checkpoint.latest(folder)
    assert newest is not None
    tensors = checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL)
    return np.concatenate([tensors[tensor.name].numpy().reshape(-1) for tensor in plan.tensors])


@pytest.mark.parametrize("name", ["countsketch", "countmean"])
def test_what_is_applied_is_the_decoded_sketch_of_the_workers_sum(tmp_path: Path, name: str) -> None:
    """Check that the update is the decoded sketch of the workers' sum. For countsketch, decoding each sketch alone would give
    other weights: the median of a sum is not the sum of the medians.
    """
    run(config(tmp_path / "plan", name))
    plan = Plan.from_dict(json.loads((tmp_path / "plan" / "config.json").read_bytes())["plan"])
    dense, coded = (weights(tmp_path / scheme, scheme, plan) for scheme in ("dense", name))
    codec, start = get_codec(name), initial(plan)
    gradient = (start - dense) / LR
    for group in plan.groups:
        for segment in group.segments:
            part = gradient[segment.start : segment.stop]
            if segment.codec != "identity":
                key = Key.derive(SEED, "gradient", 0, 1, group.index, segment.index)
                part = codec.decode(codec.encode((3 * part).astype(np.float32), key)) / 3
            expected = start[segment.start : segment.stop] - LR * part
            np.testing.assert_allclose(coded[segment.start : segment.stop], expected, atol=2e-4 * np.abs(expected).max())
