"""--weighted-mean: workers whose batches have different numbers of tokens train as plain PyTorch does on the joined batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.nn import functional

from psnode.codecs import get_codec
from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError, WireError
from psnode.protocol import wire
from psnode.task import Batch, Task
from psnode.tasks.data.sampler import Sampler
from tests.kinds.task import weights_after

EXAMPLES, LENGTH, CLASSES, BATCH, SEED, LR, STEPS, WORKERS = 48, 9, 7, 3, 2, 0.3, 8, 2
PAD = -100


class Sentences:
    """Sentences of 1 to 9 words, each word of which predicts the next class; every fourth sentence has no word that counts."""

    def __init__(self) -> None:
        rng = np.random.default_rng(6)
        self.words = rng.integers(CLASSES, size=(EXAMPLES, LENGTH))
        self.labels = (3 * self.words + 1) % CLASSES
        lengths = rng.integers(1, LENGTH + 1, size=EXAMPLES)
        lengths[::4] = 0
        self.labels[np.arange(LENGTH) >= lengths[:, None]] = PAD

    def __len__(self) -> int:
        return EXAMPLES

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> Batch:
        return torch.from_numpy(self.words[indices]), torch.from_numpy(self.labels[indices])


class Net(nn.Module):
    """A network that outputs a class for every word."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(CLASSES, 5), nn.Linear(5, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.table(words).tanh())
        return out


def total_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    logits = model(batch[0])
    return functional.cross_entropy(logits.flatten(0, 1), batch[1].flatten(), ignore_index=PAD, reduction="sum")


def tokens(batch: Batch) -> int:
    return int((batch[1] != PAD).sum())


class Tagging(Task):
    """Trains on the words that count; the size of a batch is their number."""

    def model(self) -> nn.Module:
        return Net()

    def train_data(self) -> Sentences:
        return Sentences()

    def eval_data(self) -> Sentences:
        return Sentences()

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, None]:
        return total_loss(model, batch) / max(1, tokens(batch)), None

    def size(self, batch: Batch) -> int:
        return tokens(batch)


def batches_of(step: int, micro: int) -> list[list[Batch]]:
    """Return the batches that each worker takes in a step."""
    data = Sentences()
    samplers = [Sampler(EXAMPLES, worker, WORKERS, BATCH, micro, SEED) for worker in range(WORKERS)]
    return [[data.batch(indices, None) for indices in sampler.indices(step)] for sampler in samplers]


def by_torch(micro: int, steps: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Train in plain PyTorch on all batches of a step joined into one; return weights and losses."""
    torch.manual_seed(SEED)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9)
    losses = []
    for step in range(1, steps + 1):
        joined = [batch for worker in batches_of(step, micro) for batch in worker]
        union = tuple(torch.cat(parts) for parts in zip(*joined, strict=True))
        optimizer.zero_grad()
        loss = total_loss(model, union) / tokens(union)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return {name: weight.detach() for name, weight in model.named_parameters()}, losses


def trained(folder: Path, **settings: Any) -> dict[str, torch.Tensor]:
    known: dict[str, Any] = {"scheme": "dense", "lr": LR, "momentum": 0.9, "seed": SEED, "batch_size": BATCH, "max_steps": STEPS}
    known |= {"local": WORKERS, "group_by": "layer", "tensorboard": False, "threads": 1, "hash_every": 1, "weighted_mean": True}
    return weights_after(Tagging(), Config(train_dir=folder, **{**known, **settings}))


def records_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("rule", [{}, {"consistency": "kofn", "num_aggregate": WORKERS}, {"aggregate_order": "arrival"}], ids=str)
def test_weights_and_losses_are_those_of_torch_on_the_joined_batch(micro: int, rule: dict[str, Any], tmp_path: Path) -> None:
    steps = STEPS // micro
    counts = {tokens(batch) for step in range(1, steps + 1) for worker in batches_of(step, micro) for batch in worker}
    assert len(counts) > 3
    expected, losses = by_torch(micro, steps)
    found = trained(tmp_path / "run", batches_per_step=micro, max_steps=steps, **rule)
    assert [record["loss"] for record in records_in(tmp_path / "run")] == pytest.approx(losses, rel=1e-4)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5)
    alike = trained(tmp_path / "alike", batches_per_step=micro, max_steps=steps, weighted_mean=False)
    assert not torch.allclose(alike["head.weight"], expected["head.weight"], rtol=1e-2, atol=1e-3)


def by_hand(steps: int, spec: str) -> list[torch.Tensor]:
    """Compute error feedback of summed losses by hand. A worker with weight w, gradient g and memory e sends the largest
    entries of w g + e; the sum of all sent entries is divided by the sum of all w.

    The matrices are coded as one vector, and the bias is sent uncoded.
    """
    torch.manual_seed(SEED)
    model, codec = Net(), get_codec(spec)
    coded, plain = [model.head.weight, model.table.weight], [model.head.bias]
    owed = [np.zeros(sum(weight.numel() for weight in coded), np.float32) for _ in range(WORKERS)]
    for step in range(1, steps + 1):
        total, rest, count = np.zeros_like(owed[0]), torch.zeros(CLASSES), 0
        for worker, batches in enumerate(batches_of(step, 1)):
            *gradients, bias = torch.autograd.grad(total_loss(model, batches[0]), [*coded, *plain])
            due = torch.cat([gradient.flatten() for gradient in gradients]).numpy() + owed[worker]
            sent = codec.decode(codec.encode(due, np.random.default_rng(0)))
            owed[worker] = due - sent
            total, rest, count = total + sent, rest + bias, count + tokens(batches[0])
        with torch.no_grad():
            for weight, change in zip(coded, torch.from_numpy(total).split([weight.numel() for weight in coded]), strict=True):
                weight -= LR * change.view(weight.shape) / count
            model.head.bias -= LR * rest / count
    return [weight.detach() for weight in [*coded, *plain]]


def test_what_coding_lost_is_owed_in_units_of_summed_losses(tmp_path: Path) -> None:
    settings = {"scheme": "topk:ratio=0.2", "feedback": "ef", "downlink": "dense", "momentum": 0.0, "min_compress_bytes": 0}
    found = trained(tmp_path, group_by="model", **settings)
    for name, weight in zip(("head.weight", "table.weight", "head.bias"), by_hand(STEPS, "topk:ratio=0.2"), strict=True):
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5)


def test_a_coded_run_is_the_same_to_the_bit_where_it_is_resumed(tmp_path: Path) -> None:
    settings = {"scheme": "topk:ratio=0.2", "min_compress_bytes": 0, "lr": 0.1}
    whole = trained(tmp_path / "whole", **settings)
    trained(tmp_path / "parts", **{**settings, "max_steps": 3})
    parts = trained(tmp_path / "parts", resume=True, **settings)
    for name, weight in whole.items():
        assert torch.equal(parts[name], weight), name


class Counted(Tagging):
    """A task whose batch size is the number of examples, as without weights."""

    def size(self, batch: Batch) -> int:
        return len(batch[0])


def test_full_batches_weigh_alike_to_the_bit(tmp_path: Path) -> None:
    known: dict[str, Any] = {"scheme": "qsgd", "lr": LR, "seed": SEED, "batch_size": BATCH, "max_steps": STEPS}
    known |= {"tensorboard": False, "threads": 1, "min_compress_bytes": 0, "local": WORKERS}
    found = [
        weights_after(Counted(), Config(train_dir=tmp_path / str(weighted), weighted_mean=weighted, **known))
        for weighted in (True, False)
    ]
    for name, weight in found[0].items():
        assert torch.equal(found[1][name], weight), name


class Silent(Tagging):
    """A task in which no word counts."""

    def size(self, batch: Batch) -> int:
        return 0


def test_steps_in_which_nothing_counts_move_nothing(tmp_path: Path) -> None:
    torch.manual_seed(SEED)
    before = dict(Net().named_parameters())
    known: dict[str, Any] = {"scheme": "dense", "lr": LR, "seed": SEED, "batch_size": BATCH, "max_steps": 2, "local": WORKERS}
    after = weights_after(Silent(), Config(train_dir=tmp_path, weighted_mean=True, tensorboard=False, threads=1, **known))
    for name, weight in before.items():
        assert torch.equal(after[name], weight.detach()), name


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"scheme": "signsgd"}, "all votes weigh the same"),
        ({"scheme": "dense", "aggregator": "mean:clip=median"}, "takes a push that is larger"),
        ({"scheme": "dgc"}, "feedback dgc:.* sends momenta|feedback dgc sends momenta"),
        ({"codec": "sign", "feedback": "none"}, "sends nothing of their size"),
    ],
    ids=str,
)
def test_it_is_refused_where_a_push_cannot_count_more_than_another(settings: Mapping[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--weighted-mean weighs gradients, and .*({why})"):
        resolve(Config(weighted_mean=True, **settings))


def test_payloads_without_a_weight_of_eight_bytes_below_two_to_the_53_are_refused() -> None:
    assert wire.unpack_weight(np.frombuffer(wire.pack_weight(4096), np.uint8)) == 4096
    for body in (b"", b"\0" * 7, b"\xff" * 8):
        with pytest.raises(WireError, match="weight"):
            wire.unpack_weight(np.frombuffer(body, np.uint8))
