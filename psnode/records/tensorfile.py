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
        return _with_pairs(dict(load(content)), content)
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
    """Tensors as the format can hold them: complex types that it lacks as pairs of real numbers, and a note of their names."""
    import torch

    apart = _without_aliases(tensors)
    pairs = [name for name, value in apart.items() if value.is_complex() and value.dtype is not torch.complex64]
    values = {name: torch.view_as_real(value) if name in pairs else value for name, value in apart.items()}
    return values, {_PAIRS: json.dumps(pairs)} if pairs else None


def _with_pairs(tensors: dict[str, torch.Tensor], content: bytes) -> dict[str, torch.Tensor]:
    """Undo `_portable`. ValueError, KeyError or RuntimeError if the note is not one."""
    import torch

    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    for name in json.loads(header.get("__metadata__", {}).get(_PAIRS, "[]")):
        tensors[str(name)] = torch.view_as_complex(tensors[str(name)])
    return tensors


def _without_aliases(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Contiguous tensors that share no memory: the format has no aliases, so every name of tied weights gets its copy."""
    apart: dict[str, torch.Tensor] = {}
    seen = set[int]()
    for name, tensor in tensors.items():
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        apart[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return apart
