"""Inspection of a model before its first step."""

from __future__ import annotations

import contextlib
import importlib
import random
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from psnode.errors import ConfigurationError
from psnode.tasks import models as networks
from psnode.worker import inspection
from psnode.worker.computation import Computation
from psnode.worker.inspection import Findings, inspect
from tests.kinds import models
from tests.kinds.table import KINDS, SUPPORTED, WAITS, Kind
from tests.kinds.task import Points, Trains

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _scripted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count a function of tests.kinds.models as scripted only in tests that use it: PyTorch keeps its name for good."""
    models._CACHE.clear()
    scripted_functions = inspection.scripted_functions
    monkeypatch.setattr(inspection, "scripted_functions", lambda: scripted_functions() | ({"scripted"} & models._CACHE.keys()))


def seen(model: nn.Module, *, early: bool = True) -> Findings:
    task = Trains(lambda: model, 16)
    computation = Computation(task, model, torch.device("cpu"), rank=1, seed=3, torch_lock=contextlib.nullcontext())
    return inspect(computation, model, lambda step: Points(16).batch(np.arange(16), None), agreed=set(), early=early)


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.verdict != "refused"])
def test_what_the_table_says_of_waiting_is_found_and_no_trace_is_left(kind: Kind) -> None:
    torch.manual_seed(3)
    model = kind.make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = seen(model)
    assert bool(found.waits) == (kind.verdict == WAITS), found.waits
    assert kind.verdict in (SUPPORTED, WAITS)
    trained = (name for name, weight in model.named_parameters() if weight.requires_grad)
    assert sorted(found.backward or {}) == sorted(name.replace("_orig_mod.", "") for name in trained)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("verdict", [SUPPORTED, WAITS])
def test_models_drawn_at_random_wait_where_something_is_compiled(seed: int, verdict: str) -> None:
    torch.manual_seed(seed)
    model = models.Chain(seed, verdict)
    drawn = {use.__name__ for use, _ in model.blocks}
    found = seen(model)
    assert bool(found.waits) == bool(drawn & {"_by_script", "_by_compiled"}), found.waits
    recomputed = [index for use, index in model.blocks if use.__name__ == "_recomputed"]
    parts = Counter(recomputed + list({index for use, index in model.blocks if use.__name__ != "_recomputed"}))
    late = {f"pool.{index}.weight" for index, times in parts.items() if times > 1}
    assert {name for name in found.late if name.endswith("weight")} == late


def images(name: str, *shape: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    return networks.build(name, shape, 10), torch.randn(2, *shape), torch.tensor([1, 2])


def text(kind: str, *settings: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    characters = torch.randint(0, 50, (2, 64))
    return getattr(importlib.import_module("charlm"), kind)(*settings), characters, characters


@pytest.mark.parametrize(
    "make",
    [
        partial(images, "LeNet", 1, 28, 28),
        partial(images, "ResNet18", 3, 32, 32),
        partial(images, "VGG11", 3, 32, 32),
        partial(text, "Lstm", 16, 1),
        partial(text, "Transformer", 16, 1, 64),
    ],
    ids=lambda make: make.args[0],
)
def test_the_models_that_come_with_psnode_need_not_wait(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Classifies(Trains):
        def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, None]:
            return nn.functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten()), None

    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "examples"))
    model, x, y = make()
    task = Classifies(lambda: model, 16)
    computation = Computation(task, model, torch.device("cpu"), rank=1, seed=3, torch_lock=contextlib.nullcontext())
    found = inspect(computation, model, lambda step: (x, y), agreed=set(), early=True)
    assert (found.waits, found.late) == ("", [])


class Threaded(models.Weighted):
    """A model that uses a weight in a thread, where no mode of torch is active."""

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        found: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: found.append(x @ self.owner.weight))
        thread.start()
        thread.join()
        return found[0]

    def __init__(self) -> None:
        super().__init__()
        self.owner = models.linear()


def test_a_use_that_no_net_holds_makes_the_run_wait() -> None:
    assert seen(Threaded()).waits == "it computed something else in a rehearsal in which weights came late"


def test_a_model_of_which_no_pass_is_like_another_waits() -> None:
    class Random(models.Weighted):
        def middle(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight * float(np.random.default_rng().standard_normal())

    assert "rehearsal" in seen(Random()).waits
    assert seen(Random(), early=False).waits == ""


class Remembers(models.Weighted):
    """A model whose forward pass counts, stores and draws outside torch."""

    def __init__(self) -> None:
        super().__init__()
        self.passes, self.kept, self.known = 0, [0.0], {"passes": 0}

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        self.known["passes"] = self.passes
        self.kept.append(random.random() + np.random.standard_normal() + float(torch.rand(())))
        return x @ self.weight * self.kept[-1] / self.passes


@pytest.mark.parametrize("early", [True, False])
def test_what_a_model_counts_keeps_and_draws_is_put_back(early: bool) -> None:
    model = Remembers()
    kept = model.kept
    drawn = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert seen(model, early=early).waits == ""
    assert (model.passes, model.kept, model.known) == (0, [0.0], {"passes": 0})
    assert model.kept is kept
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == drawn


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("first", [None, torch.ones(1)])
def test_buffers_that_a_pass_makes_or_resizes_are_as_before(first: torch.Tensor | None, persistent: bool) -> None:
    model = models.Masked(first, persistent=persistent)
    assert seen(model).waits == ""
    assert (model.mask is None) if first is None else model.mask is first
    assert model.passes == 0
    assert dict(model.named_buffers()).keys() == ({"mask"} - ({"mask"} if first is None else set()))


def test_a_loss_that_is_rounded_by_where_its_weights_lie_need_not_wait() -> None:
    """Check that a model need not wait if its loss depends on the address of a weight. torch's memory begins at multiples of
    64 bytes; in the vector, the weight follows 8 x 8 + 8 + 1 other values.
    """

    class Aligned(models.Weighted):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Parameter(torch.ones(1))
            self.last_weight = nn.Parameter(torch.ones(models.WIDTH))

        def middle(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight * self.one * self.last_weight * (1 + (self.last_weight.data_ptr() % 64 != 0) / 1024)

    assert seen(Aligned()).waits == ""


def test_a_parameter_that_holds_nan_and_is_not_used_was_not_written() -> None:
    model = models.Unused()
    model.unused.weight.detach().fill_(torch.nan)
    one, other = seen(model), seen(models.Unused())
    assert (list(one.backward or {}), one.late, one.waits) == (list(other.backward or {}), other.late, other.waits)


@pytest.mark.parametrize("early", [True, False])
def test_memory_that_was_kept_when_the_model_was_built_is_refused_by_name(early: bool) -> None:
    class Kept(models.Tied):
        def __init__(self) -> None:
            super().__init__()
            self.kept = self.two.bias.detach().numpy()

        def middle(self, x: torch.Tensor) -> torch.Tensor:
            return super().middle(x) + torch.from_numpy(self.kept)

    model = Kept()
    before = model.two.bias.detach().clone()
    with pytest.raises(ConfigurationError, match=r"the memory that parameter two\.bias had"):
        seen(model, early=early)
    assert model.two.bias.equal(before)


def test_parameters_side_by_side_in_one_memory_share_nothing() -> None:
    model = models.Recurrent(nn.LSTM)
    model.pack()
    inspection.refuse_shared_memory(model)
    model.rnn.weight_hh_l0.data = model.rnn.weight_ih_l0.data[:, :1].expand(32, 8)
    with pytest.raises(ConfigurationError, match=r"rnn\.weight_hh_l0 and rnn\.weight_ih_l0 share memory"):
        inspection.refuse_shared_memory(model)
