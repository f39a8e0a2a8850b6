"""An unfinished checkpoint is invisible, and holds only declared content."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from psnode.records import checkpoint, staging
from psnode.records.checkpoint import Checkpoint
from psnode.records.staging import StagedCheckpoint
from psnode.records.tensorfile import content_of


def published(train_dir: Path, step: int) -> Path:
    staged = StagedCheckpoint(train_dir, step)
    staged.add_tensors("model.safetensors", {"w": torch.full((5,), float(step))})
    return staged.publish({"workers": 2})


def test_a_draft_is_invisible(tmp_path: Path) -> None:
    published(tmp_path, 1)
    draft = StagedCheckpoint(tmp_path, 2)
    draft.add("model.safetensors", b"half")
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["step-00000001"]
    newest = checkpoint.latest(tmp_path)
    assert newest is not None and newest.name == "step-00000001"


def test_what_nobody_decided_on_is_no_part_of_a_checkpoint(tmp_path: Path) -> None:
    draft = StagedCheckpoint(tmp_path, 3)
    first, _ = (staging.write_part(tmp_path, 3, 0, rank, content_of({"w": torch.ones(3)})) for rank in (1, 2))
    draft.adopt("worker-001.safetensors", first)
    draft.add_tensors("model.safetensors", {"w": torch.ones(3)})
    found = Checkpoint.open(draft.publish({"workers": 2}))
    found.verify()
    assert set(found.facts["files"]) == {"model.safetensors", "worker-001.safetensors"}
    assert {path.name for path in found.path.iterdir()} == {"manifest.json", "model.safetensors", "worker-001.safetensors"}
    assert sorted(path.name for path in found.path.parent.iterdir()) == ["latest", "step-00000003"]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_a_tensor_of_any_type_is_read_back(dtype: torch.dtype, tmp_path: Path) -> None:
    value = (torch.tensor([[1.5, -2.0], [0.0, 3.0]], dtype=torch.float64) * (1 + 2j if dtype.is_complex else 1)).to(dtype)
    draft = StagedCheckpoint(tmp_path, 1)
    draft.add_tensors("x.safetensors", {"beside": torch.ones(3), "value": value})
    found = Checkpoint.open(draft.publish({"workers": 1})).tensors("x.safetensors")
    assert found["value"].dtype is dtype and torch.equal(found["value"], value)
    assert torch.equal(found["beside"], torch.ones(3))
