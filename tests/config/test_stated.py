"""Settings that are printed, and read back from TOML and from a run's config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.config.load import load, to_toml
from psnode.errors import ConfigurationError

FLAGS: list[dict[str, Any]] = [
    {},
    {"scheme": "qsgd:levels=7+ans", "group_by": "model", "lr": 0.05, "max_steps": 7, "min_workers": 2},
    {"lr_schedule": "multistep", "lr_milestones": (3, 9), "momentum": 0.5, "nesterov": True},
    {"consistency": "kofn", "num_aggregate": 2, "optimizer": "adam"},
    {"consistency": "ssp", "staleness": 3, "feedback": "ef:decay=0.9", "codec": "topk:ratio=0.1+fp16", "downlink": "polar"},
    {"dataset": "synthetic", "synthetic_shape": (3, 8, 8), "network": "torchvision:resnet18", "tensorboard": False},
    {"task": "some.module:Name", "task_option": ("a=b", 'quoted="\\ü"'), "train_dir": Path("there"), "local": 2},
    {"lr_shrinkage": 0.9, "deadline": 4.5, "norm_cap": 0.0, "group_bytes": 1 << 20},
]


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "+".join(flags) or "defaults")
def test_printed_settings_make_an_equal_configuration(flags: dict[str, Any], tmp_path: Path) -> None:
    config = load(flags, {})
    path = tmp_path / "printed.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert load({}, {}, path) == config
    record = tmp_path / "config.json"
    record.write_text(json.dumps({"config": config.to_dict()}))
    again = load({name: flags[name] for name in ("task",) if name in flags}, {}, record)
    assert again == replace(config, train_dir=None, local=None)


def test_the_command_prints_what_it_would_train_by(psnode: Callable[..., Any], tmp_path: Path) -> None:
    done = psnode("train", "--scheme", "topk", "--lr", "0.3", "--print-config")
    assert (done.code, done.err) == (0, "")
    (tmp_path / "printed.toml").write_text(done.out)
    again = psnode("train", "--config", "printed.toml", "--print-config")
    assert (again.code, again.out) == (0, done.out)
    assert 'scheme = "topk"\n' in done.out
    assert list(tmp_path.iterdir()) == [tmp_path / "printed.toml"]  # no run started
    refused = psnode("train", "--scheme", "nonsense", "--print-config")
    assert (refused.code, refused.out) == (2, "")
    assert psnode("train", "-h").out == psnode("train", "--help").out


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"config": {}}', '{"config": 3}', "[" * 100_000])
def test_a_record_that_is_none_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load({}, {}, path)
    assert "\n" not in str(caught.value)


def test_the_code_that_a_record_names_is_not_executed_unasked(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": Config(task="somebody.elses").to_dict()}))
    with pytest.raises(ConfigurationError, match=r"would execute somebody\.elses: name it again with --task"):
        load({}, {}, path)
    assert load({"trust_run": True}, {}, path).task == "somebody.elses"
    assert load({"task": "mine"}, {}, path).task == "mine"
