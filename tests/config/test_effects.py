"""Every accepted setting has an effect on the record, and on the weights after three steps.

Settings that may change when a run is resumed (deadlines, paths, overlap, ...) and those of EXCEPTIONS are not covered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psnode.codecs.rng import Key
from psnode.config import Config, settings
from psnode.config.resolve import resolve
from psnode.config.scheme import Scheme
from psnode.config.schemes import SCHEMES
from psnode.errors import ConfigurationError
from psnode.exchange.flat_model import FlatModel
from psnode.exchange.segment_coder import SegmentCoder
from psnode.exchange.shard.aggregator import get_aggregator
from psnode.exchange.update.parameters import Parameters
from psnode.feedback import get_feedback
from psnode.jobs.job import run
from psnode.plans.coding import Coding
from psnode.plans.groups import Tensor
from psnode.plans.rule import make_plan

# setting -> a value, and other settings of the run; the result must differ from that of the setting's other value
WITNESSES: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "network": ("LeNet", {}),
    "dataset": ("synthetic", {}),
    "synthetic_shape": ((1, 4, 4), {"dataset": "synthetic"}),
    "synthetic_classes": (3, {"dataset": "synthetic"}),
    "synthetic_examples": (600, {"dataset": "synthetic"}),
    "batch_size": (9, {}),
    "seed": (2, {}),
    "precision": ("bf16", {}),
    "optimizer": ("adam", {}),
    "lr": (0.02, {}),
    "momentum": (0.5, {}),
    "nesterov": (True, {}),
    "optimizer_option": (("alpha=0.5",), {"optimizer": "rmsprop"}),
    "beta2": (0.9, {"optimizer": "adam"}),
    "eps": (0.1, {"optimizer": "adam"}),
    "weight_decay": (0.1, {}),
    "no_decay": (("bias",), {"weight_decay": 0.1}),
    "clip_grad_norm": (1e-3, {}),
    "clip_estimate": ("previous", {"clip_grad_norm": 1e-3}),
    "lr_schedule": ("poly", {}),
    "lr_shrinkage": (0.5, {"lr_schedule": "shrink", "batch_size": 512, "local": 1}),
    "lr_shrink_steps": (1, {"lr_schedule": "shrink"}),
    "lr_milestone_steps": ((2,), {"lr_schedule": "multistep", "lr_milestone_steps": (1,)}),
    "lr_decay_epochs": (0.02, {"lr_schedule": "wsd", "lr_decay_epochs": 0.03}),
    "lr_decay_steps": (2, {"lr_schedule": "wsd"}),
    "lr_start_factor": (0.5, {"lr_schedule": "onecycle", "lr_peak": 0.8}),
    "lr_peak": (0.8, {"lr_schedule": "onecycle"}),
    "lr_end_factor": (0.5, {"lr_schedule": "cosine"}),
    "warmup_steps": (2, {}),
    "lr_milestones": ((2,), {"lr_schedule": "multistep", "lr_milestones": (1,), "batch_size": 512, "local": 1}),
    "lr_gamma": (0.5, {"lr_schedule": "multistep", "lr_milestones": (1,), "batch_size": 512, "local": 1}),
    "lr_power": (2.0, {"lr_schedule": "poly"}),
    "warmup_epochs": (1.0, {}),
    "batches_per_step": (2, {}),
    "scheme": ("qsgd", {}),
    "codec": ("bf16", {}),
    "feedback": ("ema", {}),
    "aggregator": ("majority", {}),
    "downlink": ("bf16", {}),
    "downlink_lead": (0.5, {"downlink": "bf16"}),
    "svd_rank": (1, {"scheme": "atomo"}),
    "quantization_level": (1, {"scheme": "qsgd"}),
    "sparsity_warmup_epochs": (0.0, {"scheme": "dgc"}),
    "bucket_size": (64, {"scheme": "qsgd"}),
    "min_compress_bytes": (1 << 20, {"scheme": "qsgd"}),
    "small_tensors": ("coded", {"scheme": "qsgd"}),
    "group_by": ("layer", {"scheme": "qsgd"}),
    "group_bytes": (1 << 17, {"scheme": "qsgd"}),
    "consistency": ("asp", {}),
    "num_aggregate": (1, {"consistency": "kofn", "num_aggregate": 2}),
    "staleness": (3, {"consistency": "ssp", "staleness": 0}),
}
EXCEPTIONS = {
    "weighted_mean": "the same where all batches are full: tests/test_weighted_mean.py",
    "task": "another model and other data altogether: tests/test_task.py",
    "task_option": "for the task to use or to refuse",
    "ema_decay": "keeps weights beside those of the run: tests/test_moving_average.py",
    "aggregate_order": "changes the order of sums; by rank is one of those by arrival",
    "topology": "the weights are the same, wherever they are updated: tests/master/test_dealt_weights.py",
    "plan": "a file, or a choice by time: tests/plans/test_plan_file.py",
}


def test_every_setting_that_decides_how_a_run_goes_has_a_witness_or_a_reason() -> None:
    deciding = {name for name, setting in settings().items() if not setting.rules.free}
    assert not WITNESSES.keys() & EXCEPTIONS.keys()
    assert WITNESSES.keys() | EXCEPTIONS.keys() == deciding


def config(**changed: Any) -> Config:
    """Return the settings of three steps of FC on digits."""
    usual = {"network": "FC", "scheme": "dense", "downlink": "dense", "batch_size": 8, "lr": 0.05, "max_steps": 3, "eval_freq": 0}
    return Config(**{**usual, "local": 2, "threads": 1, "tensorboard": False, **changed})


@pytest.fixture(scope="module")
def hash_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function from a configuration to the hash of its final weights; each configuration runs once."""
    found: dict[Config, str] = {}

    def after(asked: Config) -> str:
        if asked not in found:
            folder: Path = tmp_path_factory.mktemp("run")
            asked.validate()
            run(replace(asked, train_dir=folder))
            found[asked] = json.loads((folder / "summary.json").read_bytes())["model_hash"]
        return found[asked]

    return after


@pytest.mark.sweep
@pytest.mark.parametrize("name", WITNESSES)
def test_a_setting_changes_what_is_recorded_and_the_weights_of_fc(name: str, hash_of: Any) -> None:
    value, behind = WITNESSES[name]
    base, witness = config(**behind), config(**{**behind, name: value})
    assert base.digest() != witness.digest()
    assert hash_of(base) != hash_of(witness)


STEPS_AN_EPOCH = 1
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    *({"feedback": rule} for rule in ("none", "ef", "ef:rescale=true", "ecq", "ema", "dgc", "momentum")),
    *({"aggregator": name} for name in ("mean", "majority")),
    {"momentum": 0.5}, {"nesterov": True}, {"weight_decay": 0.1}, {"optimizer": "adam"},
    {"optimizer": "adamw", "weight_decay": 0.1}, {"min_compress_bytes": 1 << 20}, {"sparsity_warmup_epochs": 0.0},
)  # fmt: skip
ALIKE_UNDER_A_VOTE = {
    (("feedback", "momentum"),): "a sign does not see the factor that is between momentum and ema",
    (("min_compress_bytes", 1 << 20),): "tensors that travel as they are vote by their signs: only what is sent changes",
}


def three_steps(config: Config, scheme: Scheme) -> bytes:
    """Return the weights after three steps of three workers with given gradients and learning rates .01, .02 and .03."""
    model = torch.nn.Linear(64, 96)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
    tensors = [Tensor("weight", (96, 64)), Tensor("bias", (96,))]
    plan = make_plan(tensors, scheme.codec, group_by="model", min_compress_bytes=config.min_compress_bytes)
    coding = Coding(plan, scheme)
    x = FlatModel(model, plan, torch.empty(plan.size)).vector
    parameters = Parameters(x, plan, replace(config, lr=0.01), scheme.momentum, coding.gathering)
    aggregator = get_aggregator(scheme.aggregator)
    workers = [[SegmentCoder(each) for each in coding.segments] for _ in range(3)]
    rng, total = np.random.default_rng(9), np.zeros(plan.size, np.float32)
    for step in (1, 2, 3):
        for coders in workers:
            gradient = rng.standard_normal(plan.size).astype(np.float32) ** 3
            for coder in coders:
                segment, codec = coder.segment, coder.codec(int((step - 1) / (scheme.ratio_epochs * STEPS_AN_EPOCH)), step)
                part = gradient[segment.start : segment.stop].reshape(segment.shape)
                context = coder.context(3, 0.01 * step, 0.01)
                payload = coder.feedback.push(part, coder.state, codec, Key.derive(step, segment.index), None, context)
                aggregator.add(codec, payload, total[segment.start : segment.stop])
        parameters.update(0, total, aggregator.finish(total, 3, Key.derive(step)), 0.01 * step)
    return parameters.weights.numpy().tobytes()


@pytest.mark.sweep
@pytest.mark.parametrize("name", SCHEMES)
def test_settings_beside_a_scheme_differ_in_the_weights_or_are_refused(name: str) -> None:
    """Check that two accepted settings with different meanings never give the same weights, for every scheme."""
    plain = resolve(Config(scheme=name))
    found: dict[bytes, dict[str, Any]] = {}
    accepted = 0
    for variant in VARIANTS:
        asked = Config(scheme=name, **variant)
        try:
            scheme = resolve(asked)
        except ConfigurationError:
            continue
        if variant and all(getattr(plain, key, None) == value for key, value in variant.items()):
            continue  # the variant sets a value that holds anyway
        if "feedback" in variant and get_feedback(scheme.feedback) == get_feedback(plain.feedback):
            continue
        if scheme.aggregator == "majority" and tuple(variant.items()) in ALIKE_UNDER_A_VOTE:
            continue
        accepted += 1
        weights = three_steps(asked, scheme)
        assert weights not in found, f"{variant} ends with the weights of {found[weights]}"
        found[weights] = variant
    assert accepted >= 3
