"""Files that are hashed while they are written to the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from safetensors.torch import load_file

from psnode.records import hashed_file
from psnode.records.hashed_file import BLOCK, HashedFile
from psnode.records.tensorfile import content_of, write_content


@pytest.mark.parametrize("size", [0, 1, 4096, BLOCK - 1, BLOCK, 4 * BLOCK, 5 * BLOCK + 4097])
@pytest.mark.parametrize("told", [0, 1])
def test_it_holds_what_was_written_and_tells_its_size_and_hash(tmp_path: Path, size: int, told: int) -> None:
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    with HashedFile(tmp_path / "file", told * size) as file:
        for start in range(0, size, 3 * BLOCK // 2):
            file.write(content[start : start + 3 * BLOCK // 2])
    assert (tmp_path / "file").read_bytes() == content.tobytes()
    assert file.entry == (size, xxhash.xxh3_128_hexdigest(content.tobytes()))


def test_a_disk_with_other_blocks_or_that_takes_little_at_a_time_gets_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, calls = os.write, []

    def write(descriptor: int, content: memoryview) -> int:
        calls.append(len(content))
        if len(calls) == 2:
            raise OSError(errno.EINVAL, "Invalid argument")
        return own(descriptor, content[: 5 * 4096] if len(calls) == 3 else content)

    monkeypatch.setattr(hashed_file.os, "write", write)
    content = np.random.default_rng(1).integers(0, 256, 5 * BLOCK + 3, np.uint8)
    with HashedFile(tmp_path / "file", content.size) as file:
        file.write(content)
    assert (tmp_path / "file").read_bytes() == content.tobytes()
    assert len(calls) == 8  # six blocks, one of which takes three calls


def test_an_error_of_the_disk_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, content: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hashed_file.os, "write", full)
    with pytest.raises(OSError, match="No space"), HashedFile(tmp_path / "file", 3) as file:
        file.write(b"abc")


def test_large_tensors_are_read_back_by_the_format_s_own_library(tmp_path: Path) -> None:
    tensors = {
        "odd": torch.arange(7, dtype=torch.uint8),
        "flags": torch.tensor([True, False]),
        "count": torch.tensor(3),
        "narrow": torch.randn(1001).bfloat16(),
        "weights": torch.randn(5, BLOCK // 4 + 1),
        "precise": torch.randn(3, dtype=torch.float64),
        "nothing": torch.zeros(0, 4),
    }
    written = write_content(tmp_path / "x.safetensors", content_of(tensors))
    assert written.entry.nbytes == (tmp_path / "x.safetensors").stat().st_size
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    assert all(value.dtype is tensors[name].dtype and torch.equal(value, tensors[name]) for name, value in found.items())


def test_the_first_tensor_that_is_not_finite_is_told_if_it_is_to_be_checked(tmp_path: Path) -> None:
    wide = torch.zeros(BLOCK)
    wide[-1] = torch.inf
    tensors = {"a": torch.tensor([torch.nan]), "b": torch.zeros(3), "c": wide, "d": torch.tensor([torch.nan])}
    for checked, expected in (("abcd", "a"), ("bcd", "c"), ("b", None), ("", None)):
        written = write_content(tmp_path / "x.safetensors", content_of(tensors), checked=lambda name, some=checked: name in some)
        assert written.wrecked == expected


def test_halved_tensors_are_rounded_to_bfloat16_and_others_are_not(tmp_path: Path) -> None:
    tensors = {"big": torch.randn(3 * BLOCK // 2 + 1), "small": torch.randn(3), "count": torch.arange(4), "whole": torch.randn(5)}
    content = content_of(tensors, halved=lambda name: name != "whole")
    write_content(tmp_path / "x.safetensors", content)
    found = load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(found[name], tensors[name].bfloat16()) for name in ("big", "small"))
    assert all(torch.equal(found[name], tensors[name]) for name in ("count", "whole"))
