"""Tensors as safetensors: the bytes of a message, or a file of a checkpoint."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from psnode.errors import CheckpointError

if TYPE_CHECKING:
    import torch

_PAIRS = "psnode.complex"  # in the metadata of a file: tensors that are pairs of real numbers there


def dump(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors as safetensors bytes."""
    from safetensors.torch import save

    return bytes(save(*_portable(tensors)))


def parse(content: bytes, source: str) -> dict[str, torch.Tensor]:
    """Inverse of dump. CheckpointError names `source`."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return _whole(dict(load(content)), content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{source} is no readable safetensors file: {error}") from error


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write and fsync a safetensors file of an unfinished checkpoint, straight from the tensors' memory. OSError if it cannot."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        values, metadata = _portable(tensors)
        save_file(values, path, metadata)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _portable(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str] | None]:
    """Tensors as the format can hold them, and its metadata.

    Names of one tensor, as tied weights have, become one entry; the metadata has the name of that entry under each of the
    others, as safetensors.torch.save_model writes it and load_model expects it. Complex types that the format lacks become pairs
    of real numbers.
    """
    import torch

    apart, metadata = _without_aliases(tensors)
    pairs = [name for name, value in apart.items() if value.is_complex() and value.dtype is not torch.complex64]
    values = {name: torch.view_as_real(value) if name in pairs else value for name, value in apart.items()}
    if pairs:
        metadata[_PAIRS] = json.dumps(pairs)
    return values, metadata or None


def _whole(tensors: dict[str, torch.Tensor], content: bytes) -> dict[str, torch.Tensor]:
    """Undo `_portable`. ValueError, KeyError or RuntimeError if the metadata are not such."""
    import torch

    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata = header.get("__metadata__", {})
    for name in json.loads(metadata.get(_PAIRS, "[]")):
        tensors[str(name)] = torch.view_as_complex(tensors[str(name)])
    entries = dict(tensors)
    for name, entry in metadata.items():
        if entry in entries and name != _PAIRS:
            if name in entries:
                raise ValueError(f"{name} is a tensor and another name of {entry}")
            tensors[name] = entries[entry]
    return tensors


def _without_aliases(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Contiguous tensors that share no memory, and other names of some: tensors that lie there in the same way."""
    apart: dict[str, torch.Tensor] = {}
    others: dict[str, str] = {}
    owners: dict[int, str] = {}
    for name, tensor in tensors.items():
        value = tensor.detach().resolve_conj().resolve_neg().contiguous()
        owner = owners.setdefault(value.data_ptr(), name) if value.numel() else name
        if owner == name:
            apart[name] = value
        elif value.shape == apart[owner].shape and value.dtype == apart[owner].dtype and name != _PAIRS:
            others[name] = owner
        else:
            apart[name] = value.clone()
    return apart, others
