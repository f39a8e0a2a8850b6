"""Buffers that the model sizes itself: its own storages stay as they were, checkpoints hold what grew, a resume puts it back."""

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
from psnode.records.weights import export
from psnode.task import Task
from psnode.tasks import inventory
from psnode.tasks.memory import memory_of

TYPES = [torch.float32, torch.float64, torch.int8, torch.bool, torch.complex64, torch.complex128, torch.bfloat16]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("count", [0, 3])
def test_looking_at_a_buffer_leaves_it_free_to_be_resized(dtype: torch.dtype, count: int) -> None:
    model = nn.Module()
    model.register_buffer("own", torch.ones(count).to(dtype))
    inventory.contents(model)
    assert bytes(inventory.bits(model.own)) == b"".join(bytes(x.view(torch.uint8).tolist()) for x in model.own.reshape(-1, 1))
    assert memory_of(model.own).size == model.own.nbytes
    assert model.own.resize_(50).shape == (50,)


class Sized(nn.Module):
    """A saved buffer and one that is not saved, both of size 0 until the first batch."""

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
        assert inventory.same(value, states[1][name]), name
    fresh = dict(task().model().named_buffers())
    assert any(name in fresh and value.shape != fresh[name].shape for name, value in states[0].items())
    assert follow(whole, once=True, task=task()) == 0
    records = (whole / "evaluations.jsonl").read_text()
    assert np.isfinite(float(records.rpartition('"loss": ')[2].partition(",")[0]))
