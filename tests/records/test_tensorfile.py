"""Tensors that share memory keep their values in a file, and damaged files are reported by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model, save

from psnode.errors import CheckpointError
from psnode.records import tensorfile


def test_tied_weights_are_saved_once_and_found_under_every_name() -> None:
    weight = torch.arange(6000.0)
    content = tensorfile.dump({"encoder": weight, "decoder": weight, "alike": weight.clone()})
    assert len(content) < 2 * 4 * 6000 + 1000
    found = tensorfile.parse(content, "test")
    assert list(found) and all(torch.equal(found[name], weight) for name in ("encoder", "decoder", "alike"))


def test_a_model_with_tied_weights_is_read_by_safetensors_itself(tmp_path: Path) -> None:
    def tied() -> torch.nn.Module:
        model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50, bias=False))
        model[1].weight = model[0].weight
        return model

    model, other = tied(), tied()
    tensorfile.write_tensors(tmp_path / "model.safetensors", model.state_dict())
    assert (tmp_path / "model.safetensors").stat().st_size < 4 * 50 * 8 + 500
    missing, unexpected = load_model(other, tmp_path / "model.safetensors")
    assert not missing and not unexpected
    assert torch.equal(other[0].weight, model[0].weight) and other[1].weight is other[0].weight
    apart = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50, bias=False))
    apart.load_state_dict(tensorfile.parse((tmp_path / "model.safetensors").read_bytes(), "file"))
    assert torch.equal(apart[1].weight, model[0].weight)


def test_what_shares_memory_and_is_not_the_same_tensor_is_saved_as_it_is() -> None:
    flat = torch.arange(12.0)
    given = {
        "whole": flat,
        "head": flat[:4],
        "table": flat.view(3, 4),
        "turned": flat.view(3, 4).t(),
        "bits": flat.view(torch.int32),
    }
    found = tensorfile.parse(tensorfile.dump(given | {"none": flat[:0], "also none": flat[:0]}), "test")
    assert all(torch.equal(found[name], value) for name, value in given.items())
    assert found["none"].shape == found["also none"].shape == (0,)


def test_another_name_that_is_a_tensor_already_is_refused() -> None:
    content = save({"a": torch.zeros(3), "b": torch.ones(3)}, {"b": "a"})
    with pytest.raises(CheckpointError, match="b is a tensor and another name of a"):
        tensorfile.parse(content, "thing")
    assert tensorfile.parse(save({"a": torch.zeros(3)}, {"format": "pt", "c": "a"}), "thing").keys() == {"a", "c"}


def test_views_of_one_vector_are_saved_apart() -> None:
    flat = torch.arange(10.0)
    found = tensorfile.parse(tensorfile.dump({"a": flat[:4].view(2, 2), "b": flat[4:]}), "test")
    assert found["a"].tolist() == [[0, 1], [2, 3]] and found["b"].tolist() == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 100])
def test_garbage_is_no_safetensors_file(content: bytes) -> None:
    with pytest.raises(CheckpointError, match="thing"):
        tensorfile.parse(content, "thing")
