"""An exception in the program's own code on rank 0 leaves a checkpoint of the last whole step, and the run can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from psnode.config import Config
from psnode.errors import PsnodeError
from psnode.jobs.job import run
from psnode.records import checkpoint
from psnode.task import Task
from tests.kinds.models import CLASSES, WIDTH
from tests.kinds.task import Trains

EXAMPLES, STEPS, FAILS = 16, 6, 4  # FAILS is the first step that is not completed
PLANS = {"group_by": "layer"}
FILES = (checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.REPLICA, checkpoint.EMA)
DECODED = {"pushes": 0, "last": 1 << 30}  # counts of the gradients that the master decodes
CODEC = """
import threading
from examples.codec import Logarithmic
from tests.test_own_code_ends import DECODED

class Failing(Logarithmic):
    id, number = "failing", 201

    def _decode(self, body, out):
        if "lane" in threading.current_thread().name:
            DECODED["pushes"] += 1
            if DECODED["pushes"] > DECODED["last"]:
                raise IndexError("codec's own mistake")
        super()._decode(body, out)
"""


class FaultError(Exception):
    """An exception raised by the program under test."""


class Momentum(torch.optim.SGD):
    """The program's own optimizer. The instance for the last layer's bias fails at a step."""

    def __init__(self, parameter: nn.Parameter, fails: bool) -> None:
        super().__init__([parameter], lr=0.1, momentum=0.9)
        self._left = FAILS - 1 if fails else STEPS

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if not self._left:
            self.param_groups[0]["params"][0].data.fill_(7)  # leaves the step half done
            raise FaultError("the optimizer's")
        self._left -= 1
        super().step()


class Own(Trains):
    """A network of two layers with user code that fails at the place `where`, if one is given."""

    def __init__(self, where: str = "") -> None:
        super().__init__(lambda: nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, CLASSES)), EXAMPLES)
        self._where, self._left = where, FAILS - 1


class Constrained(Own):
    def constrain(self, model: nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.2, 0.2)
            if self._where and not self._left:
                next(iter(model.parameters())).fill_(9)  # leaves the step half done
                if self._where == "exit":
                    raise SystemExit(0)
                raise FaultError("the constraint's")
        self._left -= 1


class Optimized(Own):
    def optimizer(self, name: str, parameter: nn.Parameter) -> torch.optim.Optimizer:
        return Momentum(parameter, fails=bool(self._where) and name == "0.weight")


class Paced(Own):
    def learning_rate(self, step: int, *, lr: float, steps_per_epoch: int, total_steps: int) -> float:
        if self._where and step == FAILS - 1:
            raise FaultError("the schedule's")
        return lr


def train(task: Task, folder: Path, **settings: Any) -> int:
    known = {"scheme": "dense", "lr": 0.1, "seed": 3, "batch_size": 8, "max_steps": STEPS, "local": 2}
    known |= {"tensorboard": False, "threads": 1, "eval_freq": 0, **PLANS, **settings}
    return run(Config(train_dir=folder, **known), task)


def newest(folder: Path) -> tuple[int, dict[str, torch.Tensor]]:
    found = checkpoint.Checkpoint.open(checkpoint.latest(folder))
    held = {file: found.tensors(file) for file in FILES if (found.path / file).exists()}
    return found.step, {f"{file}/{name}": value for file, tensors in held.items() for name, value in tensors.items()}


KINDS: Mapping[str, tuple[Callable[[str], Task], str, dict[str, Any]]] = {
    "constraint": (Constrained, "raises", {}),
    "constraint that ends the program": (Constrained, "exit", {}),
    "optimizer": (Optimized, "raises", {"optimizer": "task"}),
    "schedule": (Paced, "raises", {"lr_schedule": "task"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_whole_step_is_saved_and_the_run_goes_on_from_it(kind: str, tmp_path: Path) -> None:
    make, where, settings = KINDS[kind]
    whole, part, broken = tmp_path / "whole", tmp_path / "part", tmp_path / "broken"
    assert train(make(""), whole, **settings) == 0
    assert train(make(""), part, stop_after=FAILS - 1, **settings) == 0
    with pytest.raises((FaultError, PsnodeError)):
        train(make(where), broken, **settings)
    for left, right in ((part, broken), (whole, broken)):
        if left is whole:
            assert train(make(""), broken, resume=True, **settings) == 0
        (step, expected), (saved, found) = newest(left), newest(right)
        assert (saved, found.keys()) == (step, expected.keys())
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_what_workers_have_and_the_moving_average_are_those_of_the_last_whole_step_too(tmp_path: Path) -> None:
    settings = {"scheme": "topk:ratio=0.2", "min_compress_bytes": 0, "downlink": "topk:ratio=0.5", "ema_decay": 0.9}
    settings |= {"clip_grad_norm": 0.5, "optimizer": "adamw", "lr": 0.01}
    assert train(Constrained(), tmp_path / "part", stop_after=FAILS - 1, **settings) == 0
    with pytest.raises(FaultError):
        train(Constrained("raises"), tmp_path / "run", **settings)
    (step, expected), (saved, found) = newest(tmp_path / "part"), newest(tmp_path / "run")
    assert all(any(name.startswith(f"{file}/") for name in expected) for file in FILES)
    assert (saved, found.keys()) == (step, expected.keys())
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert train(Constrained(), tmp_path / "run", resume=True, **settings) == 0


def test_a_codec_of_ones_own_that_fails_on_the_master_leaves_the_last_whole_step(tmp_path: Path) -> None:
    file = tmp_path / "own_codec.py"
    file.write_text(CODEC)
    settings = {"codec": f"{file}:Failing", "feedback": "ef", "min_compress_bytes": 0}
    assert train(Own(), tmp_path / "counted", **settings) == 0
    a_step, rest = divmod(DECODED["pushes"], STEPS)
    assert a_step >= 4  # from at least two groups, so that one may be updated when the next one fails
    assert not rest
    DECODED.update(pushes=0, last=a_step * FAILS - 1)
    with pytest.raises(IndexError, match="codec's own mistake"):
        train(Own(), tmp_path / "run", **settings)
    DECODED.update(last=1 << 30)
    assert train(Own(), tmp_path / "part", stop_after=FAILS - 1, **settings) == 0
    (step, expected), (saved, found) = newest(tmp_path / "part"), newest(tmp_path / "run")
    assert (saved, found.keys()) == (step, expected.keys())
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert train(Own(), tmp_path / "run", resume=True, **settings) == 0
