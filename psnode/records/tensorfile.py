"""Tensors in the safetensors format, as the bytes of a message or as a file of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from psnode.config.files import open_plain
from psnode.config.plain_json import to_json
from psnode.errors import CheckpointError
from psnode.records.hashed_file import FileEntry, HashedFile, Raw
from psnode.records.snapshots.snapshot import raw

if TYPE_CHECKING:
    import torch

    Read = Callable[[torch.Tensor, int, Raw], None]  # fills an array with the bytes of a tensor, beginning at an offset

_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
_HEAD_BYTES = 100_000_000  # the largest header that safetensors reads
_PAIRS = "psnode.complex"  # key in a file's metadata: names of complex tensors stored as pairs of real numbers


def dump(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return tensors as safetensors bytes."""
    from safetensors.torch import save

    return bytes(save(*_portable(tensors)))


def parse(content: bytes, source: str) -> dict[str, torch.Tensor]:
    """Return the tensors in safetensors bytes. Raises CheckpointError, naming `source`, if the bytes are invalid."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return _whole(dict(load(content)), content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{source} is not a readable safetensors file: {error}") from error


def names(path: Path) -> list[str]:
    """Return the names in the header of a file, aliases included; empty if the header cannot be read (`parse` reports this)."""
    try:
        with open_plain(path) as file:
            head = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), _HEAD_BYTES)))
        return [*head, *head.get("__metadata__", {})]
    except (OSError, ValueError, TypeError, AttributeError):
        return []


class Content(NamedTuple):
    """The content of a safetensors file: its tensors by their names in the file, and its metadata.

    Float32 tensors named in `halved` are stored as bfloat16.
    """

    tensors: dict[str, torch.Tensor]
    metadata: dict[str, str]
    halved: frozenset[str] = frozenset()

    def together(self, other: Content) -> Content:
        """Return the content of a file with the tensors of both contents, whose names must differ."""
        pairs = [name for each in (self, other) for name in json.loads(each.metadata.get(_PAIRS, "[]"))]
        metadata = {**self.metadata, **other.metadata, **({_PAIRS: to_json(pairs)} if pairs else {})}
        return Content({**self.tensors, **other.tensors}, metadata, self.halved | other.halved)


class Written(NamedTuple):
    """A file on the disk: its entry in a manifest, and the first checked tensor that is not finite, if there is one."""

    entry: FileEntry
    wrecked: str | None


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> Written:
    """Write and fsync a safetensors file of an unfinished checkpoint, directly from the tensors' memory. Raises OSError on
    failure."""
    return write_content(path, content_of(tensors))


def write_content(
    path: Path, content: Content, read: Read | None = None, checked: Callable[[str], bool] | None = None
) -> Written:
    """Write and fsync a safetensors file, hashing it on the way.

    `read` supplies the bytes of a tensor, by default from its memory. Tensors whose names satisfy `checked` are searched for
    values that are not finite, until the first is found. Raises OSError if the file cannot be written.
    """
    header, order = _header(content)
    size = len(header) + sum(_stored(content, name) for name in order)
    wrecked = None
    with HashedFile(path, size) as file:
        file.write(header)
        for name in order:
            check = wrecked is None and checked is not None and checked(name)
            if not _append(file, content.tensors[name], read or _held, halved=name in content.halved, check=check):
                wrecked = name
    return Written(file.entry, wrecked)


def assembled(content: Content, read: Read) -> Raw:
    """Return the bytes of a safetensors file with `content`, which must have no halved tensors.

    `read` supplies a tensor's bytes.
    """
    header, order = _header(content)
    values = np.empty(len(header) + sum(_stored(content, name) for name in order), np.uint8)
    values[: len(header)] = np.frombuffer(header, np.uint8)
    place = len(header)
    for name in order:
        tensor = content.tensors[name]
        read(tensor, 0, values[place : place + tensor.nbytes])
        place += tensor.nbytes
    return values


def _append(file: HashedFile, tensor: torch.Tensor, read: Read, *, halved: bool, check: bool) -> bool:
    """Append a tensor's values to `file`. Returns False if `check` is set and some values are not finite."""
    import torch

    start, size, width, finite = 0, tensor.nbytes, tensor.element_size(), True
    while start < size:
        room = file.room()
        if room.size < width:  # the rest of the block is too small for a value
            values = np.empty(width, np.uint8)
        elif halved:
            values = np.empty(min(size - start, room.size // 4 * 4), np.uint8)
        else:
            values = room[: min(size - start, room.size // width * width)]
        read(tensor, start, values)
        finite = finite and not (check and not is_finite(torch.from_numpy(values).view(tensor.dtype)))
        start += values.size
        if halved:
            file.write(torch.from_numpy(values).view(tensor.dtype).bfloat16().view(torch.uint8).numpy())
        elif values.size <= room.size and values.base is room.base:
            file.take(values.size)
        else:
            file.write(values)
    return finite


def _held(tensor: torch.Tensor, start: int, out: Raw) -> None:
    """Copy the bytes of a tensor from its memory to `out`."""
    np.copyto(out, raw(tensor)[start : start + out.size])


def is_finite(tensor: torch.Tensor) -> bool:
    """Return True if all values of a tensor are finite.

    One-byte types are converted to float32 first, since torch.isfinite does not support all of them.
    """
    import torch

    from psnode.codecs.kernels.finite import all_finite

    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if tensor.dtype is torch.float32 and tensor.is_contiguous() and tensor.device.type == "cpu":
        return all_finite(raw(tensor).view(np.float32))
    wide = tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor
    return bool(torch.isfinite(wide).all())


def _header(content: Content) -> tuple[bytes, list[str]]:
    """Return the header of a safetensors file, and the order of its tensors.

    Tensors of the widest types come first, so that all tensors are aligned.
    """
    import torch

    types = {getattr(torch, name, None): kind for name, kind in _TYPES.items()}
    stored = {name: torch.bfloat16 if name in content.halved else value.dtype for name, value in content.tensors.items()}
    order = sorted(stored, key=lambda name: (-stored[name].itemsize, name))
    fields: dict[str, object] = {"__metadata__": content.metadata} if content.metadata else {}
    place = 0
    for name in order:
        if stored[name] not in types:
            raise CheckpointError(f"{name} is {stored[name]}, which a safetensors file cannot hold: give it another type")
        stop = place + _stored(content, name)
        shape = list(content.tensors[name].shape)
        fields[name] = {"dtype": types[stored[name]], "shape": shape, "data_offsets": [place, stop]}
        place = stop
    text = to_json(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


def _stored(content: Content, name: str) -> int:
    """Return the number of bytes of a tensor in the file."""
    value = content.tensors[name]
    return 2 * value.numel() if name in content.halved else value.nbytes


def content_of(tensors: Mapping[str, torch.Tensor], *, halved: Callable[[str], bool] | None = None) -> Content:
    """Return tensors in the form of a file, as views of their memory if possible.

    Float32 tensors whose names satisfy `halved` are stored with the precision of bfloat16.
    """
    import torch

    values, metadata = _portable(tensors)
    names = [name for name, value in values.items() if halved is not None and value.dtype is torch.float32 and halved(name)]
    return Content(values, metadata or {}, frozenset(names))


def _portable(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str] | None]:
    """Return the tensors in a form that the file format can hold, and the file's metadata.

    If one tensor has several names, as tied weights have, it becomes one entry. The metadata maps each of its other names to
    the name of the entry, as safetensors.torch.save_model writes it and load_model expects it. Complex types that the format
    lacks become pairs of real numbers.
    """
    import torch

    apart, metadata = _without_aliases(tensors)
    pairs = [name for name, value in apart.items() if value.is_complex() and value.dtype is not torch.complex64]
    values = {name: torch.view_as_real(value) if name in pairs else value for name, value in apart.items()}
    if pairs:
        metadata[_PAIRS] = to_json(pairs)
    return values, metadata or None


def _whole(tensors: dict[str, torch.Tensor], content: bytes) -> dict[str, torch.Tensor]:
    """Undo `_portable`: restore complex tensors and the tensors that have several names.

    Raises ValueError, KeyError or RuntimeError for invalid metadata.
    """
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
    """Return two dicts: contiguous tensors that share no memory, and further names of these tensors, each with the main name.

    Tensors with the same memory, shape and type are returned as one tensor with further names. Tensors that share memory in
    another way are copied.
    """
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
