"""Checkpoints are complete or absent, and altered ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from psnode.errors import CheckpointError
from psnode.records import checkpoint, tensorfile
from psnode.records.checkpoint import Checkpoint
from psnode.records.retention import prune
from psnode.records.staging import StagedCheckpoint


def published(train_dir: Path, step: int, keep_last: int = 0) -> Path:
    draft = StagedCheckpoint(train_dir, step)
    draft.add_tensors("model.safetensors", {"w": torch.full((5,), float(step))})
    draft.add("state/optimizer.safetensors", tensorfile.dump({}))
    path = draft.publish({"workers": 2})
    prune(train_dir, step, keep_last)
    return path


def test_what_is_published_is_read_back(tmp_path: Path) -> None:
    published(tmp_path, 7)
    newest = checkpoint.latest(tmp_path)
    assert newest is not None and newest.name == "step-00000007"
    found = Checkpoint.open(newest)
    assert found.step == 7 and found.facts["workers"] == 2
    assert torch.equal(found.tensors("model.safetensors")["w"], torch.full((5,), 7.0))


def test_latest_is_none_before_the_first(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None and checkpoint.complete(tmp_path) == []


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (900_000_000, 20, 3):
        published(tmp_path, step)
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path)] == [3, 20, 900_000_000]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in range(1, 6):
        published(tmp_path, step, keep_last=2)
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path)] == [4, 5]


@pytest.mark.parametrize("damage", ["truncate", "append", "flip", "remove"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = published(tmp_path, 1)
    file = path / "model.safetensors"
    content = bytearray(file.read_bytes())
    if damage == "remove":
        file.unlink()
    else:
        content[-1] ^= damage == "flip"
        file.write_bytes({"truncate": content[:-1], "append": content + b"x", "flip": content}[damage])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        Checkpoint.open(path).tensors("model.safetensors")


def test_a_file_of_another_size_and_one_that_is_not_listed_are_told_apart(tmp_path: Path) -> None:
    path = published(tmp_path, 1)
    (path / "late").write_bytes(b"12345")
    (path / "model.safetensors").write_bytes(b"123")
    found = Checkpoint.open(path)
    with pytest.raises(CheckpointError, match="late has 5 bytes, its manifest has no entry"):
        found.read("late")
    with pytest.raises(CheckpointError, match=r"model\.safetensors has 3 bytes, its manifest has \d+ bytes"):
        found.read("model.safetensors")


def test_an_old_checkpoint_stays_for_the_parts_of_the_jobs_workers_alone(tmp_path: Path) -> None:
    """Check that the checkpoint of step 1 stays for the part of worker 2, which all later ones lack. That of step 2 goes: no
    rank needs the file of a third worker.
    """
    for step, ranks in ((1, (1, 2)), (2, (1, 3)), (3, (1,)), (4, (1,))):
        draft = StagedCheckpoint(tmp_path, step)
        for rank in ranks:
            draft.add(checkpoint.worker_file(rank), tensorfile.dump({}))
        draft.publish({"workers": 2})
        prune(tmp_path, step, 1, 2)
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path)] == [1, 4]


def test_where_no_workers_are_named_no_part_of_one_keeps_an_old_checkpoint(tmp_path: Path) -> None:
    draft = StagedCheckpoint(tmp_path, 1)
    draft.add(checkpoint.worker_file(1), tensorfile.dump({}))
    draft.publish({"workers": 1})
    published(tmp_path, 2, keep_last=1)
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path)] == [2]


def test_a_checkpoint_without_a_manifest_is_none(tmp_path: Path) -> None:
    published(tmp_path, 1)
    (published(tmp_path, 2) / "manifest.json").unlink()
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path)] == [1]


def test_what_was_published_last_is_kept_even_if_later_steps_lie_beside_it(tmp_path: Path) -> None:
    for step in (4, 8, 12):
        published(tmp_path, step)
    for step in (5, 6):
        published(tmp_path, step, keep_last=1)
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path)] == [6, 8, 12]


@pytest.mark.parametrize("damage", ["truncate", "append", "flip", "remove"])
def test_verifying_names_a_damaged_file_and_passes_a_sound_one(tmp_path: Path, damage: str) -> None:
    path = published(tmp_path, 1)
    Checkpoint.open(path).verify()
    file = path / "state" / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= damage == "flip"
    file.write_bytes({"truncate": content[:-1], "append": content + b"x"}.get(damage, content))
    if damage == "remove":
        file.unlink()
    with pytest.raises(CheckpointError, match=r"state/optimizer\.safetensors"):
        Checkpoint.open(path).verify()


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{",
        b"[]",
        b'{"step": "x"}',
        b"{}",
        b'{"step": 6}',
        b'{"step": 6, "files": []}',
        b'{"step": 6, "files": {"model.safetensors": {}}}',
        b'{"step": 6, "files": {"model.safetensors": {"bytes": "8", "xxh3_128": ""}}}',
    ],
)
def test_a_damaged_manifest_is_one_line(tmp_path: Path, manifest: bytes) -> None:
    path = published(tmp_path, 1)
    (path / "manifest.json").write_bytes(manifest)
    with pytest.raises(CheckpointError, match="incomplete or damaged"):
        Checkpoint.open(path)


@pytest.mark.parametrize("content", [b"", b"../../etc", b"step-1", b"latest\n", b"\xff\xfe\x00"])
def test_a_pointer_to_anything_but_a_checkpoint_is_refused_with_those_there_are(tmp_path: Path, content: bytes) -> None:
    published(tmp_path, 1)
    (tmp_path / "checkpoints" / "latest").write_bytes(content)
    with pytest.raises(CheckpointError, match="existing: step-00000001"):
        checkpoint.latest(tmp_path)
