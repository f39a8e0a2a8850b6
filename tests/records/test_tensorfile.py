"""Tensors that share memory keep their values in a file, and garbage is told by its name."""

from __future__ import annotations

import pytest
import torch

from psnode.errors import CheckpointError
from psnode.records import tensorfile


def test_tied_weights_are_saved_under_every_name() -> None:
    weight = torch.arange(6.0)
    content = tensorfile.dump({"encoder": weight, "decoder": weight})
    found = tensorfile.parse(content, "test")
    assert torch.equal(found["encoder"], weight) and torch.equal(found["decoder"], weight)


def test_views_of_one_vector_are_saved_apart() -> None:
    flat = torch.arange(10.0)
    found = tensorfile.parse(tensorfile.dump({"a": flat[:4].view(2, 2), "b": flat[4:]}), "test")
    assert found["a"].tolist() == [[0, 1], [2, 3]] and found["b"].tolist() == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 100])
def test_garbage_is_no_safetensors_file(content: bytes) -> None:
    with pytest.raises(CheckpointError, match="thing"):
        tensorfile.parse(content, "thing")
