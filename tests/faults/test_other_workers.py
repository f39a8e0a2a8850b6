"""Runs resumed with another number of workers: no part of a memory is lost, and the change is reported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psnode.config import Config
from psnode.errors import CheckpointError
from psnode.jobs.job import run
from psnode.protocol.messages import Ready
from psnode.records import checkpoint, tensorfile
from psnode.records.checkpoint import Checkpoint
from psnode.records.history import violations
from psnode.records.metrics import read_records
from psnode.records.redistribution import resharded
from psnode.records.staging import StagedCheckpoint
from psnode.tasks.classification import Classification
from psnode.tasks.data.sampler import permutation


def config(train_dir: Path, **changed: Any) -> Config:
    settings = {"scheme": "dense", "batch_size": 8, "max_steps": 8, "eval_freq": 4, "local": 4, "lr": 0.02, "seed": 3}
    settings |= {"threads": 1, "tensorboard": False, "hash_every": 1}
    return Config(train_dir=train_dir, **{**settings, **changed})


def newest(train_dir: Path) -> Checkpoint:
    path = checkpoint.latest(train_dir)
    assert path is not None
    return Checkpoint.open(path)


def flat(weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weights[name].reshape(-1) for name in sorted(weights)])


def sgd(batches: list[np.ndarray]) -> torch.Tensor:
    """Return LeNet's weights after a plain torch loop over these batches of digits."""
    task = Classification("LeNet", "digits", seed=3)
    torch.manual_seed(3)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    data = task.train_data()
    for indices in batches:
        loss, _ = task.loss(model, data.batch(indices, None))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return flat(model.state_dict())


def test_weights_and_momentum_go_on_and_the_rest_of_the_epoch_is_dealt_among_those_who_are_there(tmp_path: Path) -> None:
    """Compare the weights with torch's after steps of 4 x 8, then 1 x 8, then 3 x 8 examples. The joint batches follow each
    other in one permutation; those of three workers begin at multiples of 24.
    """
    for workers, steps in ((4, 8), (1, 14), (3, 18)):
        assert run(config(tmp_path, local=workers, max_steps=steps, lr=0.005, resume=workers != 4)) == 0
    order = permutation(1437, 3, 0)
    sizes = [32] * 8 + [8] * 6 + [24] * 4
    starts = np.cumsum([0, *sizes[:14]]).tolist()
    # positions at which steps of three workers begin
    starts = starts[:14] + [24 * (-(-starts[14] // 24) + step) for step in range(4)]
    batches = [order[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    found, expected = flat(newest(tmp_path).tensors(checkpoint.MODEL)), sgd(batches)
    # rounding differs; a single wrong batch would change at least a hundredth of this distance
    way = float((expected - sgd([])).norm())
    assert float((found - expected).norm()) < 1e-3 * way
    records = list(read_records(tmp_path / "metrics.jsonl"))
    assert [record["workers"] for record in records] == [4] * 8 + [1] * 6 + [3] * 4
    epochs = [record["epoch"] for record in records]
    assert epochs == sorted(epochs) and epochs[7] == 8 / 44 and epochs[13] == pytest.approx(38 / 179)
    assert json.loads((tmp_path / "config.json").read_text())["parts"] == [[0, 4], [8, 1], [14, 3]]


def test_it_is_told_and_every_replica_agrees(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    changed: dict[str, Any] = {"scheme": "qsgd", "feedback": "ef", "downlink": "bf16", "record_history": True}
    assert run(config(tmp_path, **changed)) == 0
    assert run(config(tmp_path, **changed, local=2, max_steps=16, resume=True)) == 0
    assert "the examples are dealt anew: the number of workers was 4 and is 2 now" in capfd.readouterr().err
    assert violations(tmp_path) == []
    files = newest(tmp_path).facts["files"]
    assert [name for name in files if name.startswith("worker-")] == ["worker-001.safetensors", "worker-002.safetensors"]
    both_ways = [record["uplink_bytes"] + record["downlink_bytes"] for record in read_records(tmp_path / "metrics.jsonl")]
    ratio = json.loads((tmp_path / "summary.json").read_text())["compression_ratio"]
    assert ratio == pytest.approx(8 * 431_080 * (8 * 4 + 8 * 2) / sum(both_ways))


def test_a_run_with_other_workers_is_resumed_exactly_too(tmp_path: Path) -> None:
    changed: dict[str, Any] = {"scheme": "dgc", "sparsity_warmup_epochs": 0}
    for name, ends in (("whole", [16]), ("parts", [11, 16])):
        assert run(config(tmp_path / name, **changed)) == 0
        for end in ends:
            assert run(config(tmp_path / name, **changed, local=3, max_steps=end, resume=True)) == 0
    hashes = [json.loads((tmp_path / name / "summary.json").read_text())["model_hash"] for name in ("whole", "parts")]
    assert hashes[0] == hashes[1]


@pytest.mark.sweep
@pytest.mark.parametrize("scheme", ["efsignsgd", "signum", "dgc", "lss", "atomo"])
def test_every_kind_of_memory_finds_its_new_owners(tmp_path: Path, scheme: str) -> None:
    assert run(config(tmp_path, scheme=scheme, local=2, max_steps=4)) == 0
    assert run(config(tmp_path, scheme=scheme, local=3, max_steps=8, resume=True)) == 0
    assert all(np.isfinite(record["loss"]) for record in read_records(tmp_path / "metrics.jsonl"))


def test_the_mean_of_the_memories_stays_what_it_was(tmp_path: Path) -> None:
    """Check that the memories which are dealt to another number of workers have the same mean. The update is the mean of the
    workers' pushes.
    """
    rng = np.random.default_rng(1)
    memories = [rng.standard_normal(50).astype(np.float32) for _ in range(3)]
    draft = StagedCheckpoint(tmp_path, 5)
    for rank, memory in enumerate(memories, 1):
        own = {"feedback/residual/fc.weight": torch.from_numpy(memory)}
        own |= {"feedback/codebook/fc.weight:0..fc.weight:50": torch.full((4,), rank, dtype=torch.uint8)}
        draft.add_tensors(checkpoint.worker_file(rank), {**own, "buffer/bn.mean": torch.full((2,), float(rank))})
    draft.add_tensors(checkpoint.MODEL, {"fc.weight": torch.zeros(3), "bn.mean": torch.full((2,), 2.0)})
    found = Checkpoint.open(draft.publish({"workers": 3}))
    dealt = tensorfile.parse(resharded(found, Ready([["fc.weight", [3]]], None, 10, True)), "test")
    assert set(dealt) == {"feedback/residual/fc.weight", "feedback/codebook/fc.weight:0..fc.weight:50", "buffer/bn.mean"}
    np.testing.assert_allclose(
        dealt["feedback/residual/fc.weight"].numpy(), np.mean(memories, axis=0, dtype=np.float64), rtol=1e-6
    )
    assert dealt["feedback/residual/fc.weight"].dtype == torch.float32
    assert dealt["feedback/codebook/fc.weight:0..fc.weight:50"].tolist() == [1] * 4 and dealt["buffer/bn.mean"].tolist() == [2, 2]


@pytest.mark.parametrize("parts", [[], [[1, 2]], [[0, 2], [0, 3]], [[0, 2], [5, 0]], [[0]], "no", [[0, "x"]]])
def test_damaged_parts_are_refused(tmp_path: Path, parts: object) -> None:
    assert run(config(tmp_path, local=1, max_steps=1)) == 0
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "parts": parts}))
    with pytest.raises(CheckpointError, match=r"config\.json cannot be used"):
        run(config(tmp_path, local=1, max_steps=2, resume=True))
