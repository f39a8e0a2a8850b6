"""Buffers that the model sizes itself: their storage stays, checkpoints hold their final size, and a resume restores it."""

import itertools
import json
import pathlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import psnode
from psnode.evaluator import follow
from psnode.master.checkpoints.buffers import combined
from psnode.records.weights import export
from psnode.task import Task
from psnode.tasks import model_tensors
from psnode.tasks.tensor_bytes import memory_of

TYPES = [torch.float32, torch.float64, torch.int8, torch.bool, torch.complex64, torch.complex128, torch.bfloat16]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("count", [0, 3])
def test_looking_at_a_buffer_leaves_it_free_to_be_resized(dtype: torch.dtype, count: int) -> None:
    model = nn.Module()
    model.register_buffer("own", torch.ones(count).to(dtype))
    model_tensors.contents(model)
    assert bytes(model_tensors.bits(model.own)) == b"".join(bytes(x.view(torch.uint8).tolist()) for x in model.own.reshape(-1, 1))
    assert memory_of(model.own).size == model.own.nbytes
    assert model.own.resize_(50).shape == (50,)


class Sized(nn.Module):
    """A model with a saved and an unsaved buffer, both of size 0 until the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(12, 4)
        self.register_buffer("saved", torch.zeros(0))
        self.register_buffer("mask", torch.zeros(0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in (self.saved, self.mask):
            if each.numel() == 0:
                each.resize_(12).fill_(0.5)
        return self.line(x * self.mask * self.saved)


class Small(Task):
    def model(self) -> nn.Module:
        return Sized()

    def train_data(self) -> TensorDataset:
        generator = torch.Generator().manual_seed(1)
        return TensorDataset(torch.randn(32, 12, generator=generator), torch.randint(0, 4, (32,), generator=generator))

    eval_data = train_data

    def loss(self, model, batch):
        z = model(batch[0])
        return cross_entropy(z, batch[1]), z

    def size(self, batch) -> int:
        return len(batch[0])


class Quantised(Small):
    @pytest.mark.filterwarnings("ignore")
    def model(self) -> nn.Module:
        import warnings

        import torch.ao.quantization as q

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = nn.Sequential(q.QuantStub(), nn.Linear(12, 4), q.DeQuantStub()).train()
            made.qconfig = q.get_default_qat_qconfig("fbgemm")
            return q.prepare_qat(made)


def settings(path: pathlib.Path, **more) -> psnode.Config:
    common = {"scheme": "dense", "batch_size": 4, "train_dir": path, "tensorboard": False, "quiet": True}
    return psnode.Config(**common, **more)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("task", [Small, Quantised])
def test_what_grew_is_trained_saved_resumed_evaluated_and_exported(tmp_path, task, workers) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert psnode.run(task(), settings(whole, local=workers, max_steps=4)) == 0
    assert psnode.run(task(), settings(parts, local=workers, max_steps=2)) == 0
    assert psnode.run(task(), settings(parts, local=workers, max_steps=4, resume=True)) == 0
    states = []
    for path in (whole, parts):
        export(path, path / "out.safetensors", None)
        states.append(load_file(path / "out.safetensors"))
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert model_tensors.same(value, states[1][name]), name
    fresh = dict(task().model().named_buffers())
    assert any(name in fresh and value.shape != fresh[name].shape for name, value in states[0].items())
    assert follow(whole, once=True, task=task()) == 0
    records = (whole / "evaluations.jsonl").read_text()
    assert np.isfinite(float(records.rpartition('"loss": ')[2].partition(",")[0]))


@pytest.mark.parametrize("task", [Small, Quantised])
@pytest.mark.parametrize("workers", [(2, 3), (3, 1)])
def test_what_grew_goes_on_with_other_workers_and_moving_averages(tmp_path, task, workers) -> None:
    path = tmp_path / "run"
    for count, steps in zip(workers, (2, 4), strict=True):
        assert psnode.run(task(), settings(path, local=count, max_steps=steps, ema_decay=0.5, resume=steps == 4)) == 0
    newest = path / "checkpoints" / "step-00000004"
    model, average = (load_file(newest / name) for name in ("model.safetensors", "ema.safetensors"))
    assert model.keys() == average.keys()
    trained = {name for name, _ in task().model().named_parameters()}
    assert any(not torch.equal(model[name], average[name]) for name in trained)
    assert all(model_tensors.same(model[name], average[name]) for name in model.keys() - trained)
    for ema in (False, True):
        assert follow(path, once=True, task=task(), ema=ema) == 0
    for name in ("evaluations.jsonl", "evaluations-ema.jsonl"):
        assert [json.loads(line)["step"] for line in (path / name).read_text().splitlines()] == [2, 4]


class OwnWidth(Sized):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.saved.numel():
            self.saved.resize_(self.width).fill_(0.5)
        return self.line(x * self.saved[:12])


class Unequal(Small):
    """A task whose models size their buffer by the number of models built so far."""

    def __init__(self) -> None:
        self.turn = itertools.count(1)

    def model(self) -> nn.Module:
        return OwnWidth(12 * next(self.turn))


def test_shapes_that_differ_between_workers_are_told_and_each_goes_on_with_its_own(tmp_path) -> None:
    path = tmp_path / "run"
    for steps in (2, 4):
        assert psnode.run(Unequal(), settings(path, local=2, max_steps=steps, resume=steps == 4)) == 0
    told = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    assert [each["reason"] for each in told if "buffer saved is not the same on every worker" in each.get("reason", "")]
    newest = path / "checkpoints" / "step-00000004"
    shapes = [load_file(newest / f"worker-{rank:03d}.safetensors")["buffer/saved"].numel() for rank in (1, 2)]
    assert sorted(shapes) == [24, 36]
    assert load_file(newest / "model.safetensors")["saved"].numel() == shapes[0]
    assert psnode.run(Unequal(), settings(path, local=3, max_steps=6, resume=True)) == 0


@pytest.mark.parametrize("rule", [model_tensors.MEAN, model_tensors.MAXIMUM, None])
def test_of_several_shapes_the_lowest_rank_that_holds_one_counts(rule) -> None:
    states = {1: torch.zeros(0), 2: torch.ones(3), 3: torch.full((2,), 7.0), 4: torch.full((3,), 3.0)}
    rules = {} if rule is None else {"x": rule}
    found, differing = combined({rank: {"buffer/x": value} for rank, value in states.items()}, rules)
    assert found["x"].tolist() == {model_tensors.MEAN: [2.0] * 3, model_tensors.MAXIMUM: [3.0] * 3, None: [1.0] * 3}[rule]
    assert differing == ["x"]
