"""Bodies of the messages between the master and a shard on another rank: ORDER, ANSWER and EVENT frames (docs/wire-format.md).

An order holds the name of a method of the shard's handle, and its arguments. An event is one that the shard has posted to the
inbox of its rank. Both are JSON, which is checked when it is read. The answer to the order "state" is a safetensors file. Each
answer to "next_piece" is a piece of such a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from psnode.config.plain_json import to_json
from psnode.errors import CheckpointError, CodecError, NormError, PayloadError, PsnodeError, WireError
from psnode.exchange.shard.median_clipping import Clipped
from psnode.exchange.shard.shard_events import GroupClosed, NotApplied, Refused, Scaled, Squares, Took
from psnode.protocol.messages import plain
from psnode.protocol.wire import Bytes
from psnode.records import tensorfile
from psnode.records.history import AddedGradient

Tensors = dict[str, torch.Tensor]
_FACTS = "facts"
_SEPARATOR = "//"  # between the name of a checkpoint's file and the name of a tensor


class Order(NamedTuple):
    """Order to a shard: the `name` of a method, and its `arguments`."""

    name: str
    arguments: dict[str, Any]

    def to_bytes(self) -> bytes:
        """Return the order as JSON."""
        return to_json([self.name, self.arguments]).encode()

    @classmethod
    def from_bytes(cls, body: Bytes, source: int) -> Order:
        """Return the order in `body`. Raises WireError if `body` is not an order."""
        name, arguments = _json(body, source, 2)
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise WireError("an order is a name with arguments", source)
        return cls(name, arguments)


def pack_result(result: Any) -> bytes:
    """Return the result of an order as JSON."""
    return to_json([result]).encode()


def unpack_result(body: Bytes, source: int) -> Any:
    """Return the result in `body`. Raises WireError if `body` is not a result."""
    return _json(body, source, 1)[0]


ShardEvent = Squares | GroupClosed | Refused | Scaled | NotApplied | WireError | Took


def pack_event(event: ShardEvent) -> bytes:
    """Return an event as JSON."""
    match event:
        case GroupClosed():
            added, clipped = ([list(each) for each in found] for found in (event.added, event.clipped))
            facts: list[Any] = ["closed", event.group, event.version, event.nbytes, added, clipped]
        case Refused(error=NormError() as error) | Scaled(error=NormError() as error):
            kind = "refused" if isinstance(event, Refused) else "scaled"
            facts = [kind, event.group, event.sender, [error.rank, error.step, error.group, error.norm, error.bound]]
        case Refused() | Scaled():
            facts = ["refused", event.group, event.sender, str(event.error)]
        case NotApplied():
            facts = ["not applied", event.group, list(event.ranks)]
        case WireError():
            facts = ["unreadable", event.source, str(event)]
        case Squares():
            facts = ["squares", [list(each) for each in event.squares.items()], event.added]
        case Took():
            facts = ["took", event.rank, event.seconds, event.received]
    return to_json(facts).encode()


def unpack_event(body: Bytes, source: int) -> ShardEvent:
    """Return the event in `body`, which the shard of rank `source` has sent. Raises WireError if `body` is not an event."""
    kind, *rest = _json(body, source)
    try:
        match kind, rest:
            case "closed", [int(group), int(version), int(nbytes), list(added), list(clipped)]:
                gradients = tuple(AddedGradient(int(rank), int(step), int(based)) for rank, step, based in added)
                parts = tuple(Clipped(int(rank), int(step), float(factor)) for rank, step, factor in clipped)
                return GroupClosed(group, version, nbytes, gradients, parts)
            case "refused" | "scaled", [int(group), int(sender), [int(rank), int(step), int(largest), norm, bound]]:
                error: PsnodeError = NormError(rank, step, largest, float(norm), float(bound))
                return (Refused if kind == "refused" else Scaled)(group, sender, error)
            case "refused", [int(group), int(sender), str(text)]:
                return Refused(group, sender, PayloadError(plain(text)))
            case "not applied", [int(group), list(ranks)]:
                return NotApplied(group, tuple(map(int, ranks)))
            case "unreadable", [int(sender), str(text)]:
                found = WireError(plain(text))
                found.source = sender
                return found
            case "squares", [list(squares), bool(added)]:
                return Squares({int(group): float(square) for group, square in squares}, added)
            case "took", [int(), dict(seconds), int(received)]:
                return Took(source, {plain(str(name)): float(value) for name, value in seconds.items()}, received)
    except (ValueError, TypeError, OverflowError) as error:
        raise WireError(f"an event of a shard has a value that is not valid: {error}", source) from error
    raise WireError(f"an event of a shard is unknown: {plain(str(kind))[:60]}", source)


def pack_files(files: Mapping[str, Tensors], facts: Mapping[str, Any]) -> bytes:
    """Return a safetensors file that holds the given tensors, by file of a checkpoint, and entries of the manifest."""
    return tensorfile.dump(_named(files, facts))


def content_of_files(files: Mapping[str, Tensors], facts: Mapping[str, Any]) -> tensorfile.Content:
    """Return the content of the file that `pack_files` would return, as views of the tensors' memory where possible."""
    return tensorfile.content_of(_named(files, facts))


def _named(files: Mapping[str, Tensors], facts: Mapping[str, Any]) -> Tensors:
    tensors = {f"{file}{_SEPARATOR}{name}": value for file, found in files.items() for name, value in found.items()}
    return {**tensors, _FACTS: torch.frombuffer(bytearray(to_json(dict(facts)).encode()), dtype=torch.uint8)}


def unpack_files(body: Bytes | bytes, source: int) -> tuple[dict[str, Tensors], dict[str, Any]]:
    """Return the tensors and entries in `body`: the inverse of `pack_files`. Raises WireError if `body` is not such a file."""
    try:
        tensors = tensorfile.parse(bytes(body), "a shard's state")
        facts = json.loads(tensors.pop(_FACTS).numpy().tobytes())
        files: dict[str, Tensors] = {}
        for key, value in tensors.items():
            file, name = key.split(_SEPARATOR, 1)
            files.setdefault(file, {})[name] = value
    except (CheckpointError, CodecError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise WireError(f"a shard's state cannot be read: {error}", source) from error
    return files, facts


def _json(body: Bytes, source: int, length: int | None = None) -> list[Any]:
    try:
        found = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise WireError(f"a message between master and shard is not JSON: {error}", source) from error
    if not isinstance(found, list) or (length is not None and len(found) != length) or not found:
        raise WireError("a message between master and shard has another form", source)
    return found
