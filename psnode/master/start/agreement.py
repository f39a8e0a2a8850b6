"""Agreement of all ranks with rank 0: one commit of psnode, and equal tensors, compared by hash and sent where they differ."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import torch

from psnode.config.source import told
from psnode.errors import ConfigurationError
from psnode.protocol.channel import FrameChannel
from psnode.protocol.messages import Hello, Ready
from psnode.protocol.wire import Kind
from psnode.records import checkpoint, tensorfile
from psnode.tasks import inventory
from psnode.tasks.tensor_names import parameters

_LOG = logging.getLogger(__name__)

Lacking = Mapping[int, Sequence[str]]
_NAMED = 4  # ranks in one line


def require_one_version(greetings: Mapping[int, bytes], *, unlike: bool = False) -> None:
    """Refuse ranks whose psnode is of another version or commit than rank 0's; `greetings`: the HELLO of every rank.

    ConfigurationError names them with hosts and versions, a warning if `unlike` ones may be; WireError for a malformed greeting.
    """
    ranks = {rank: Hello.of_any_version(text, rank) for rank, text in greetings.items()}
    own = ranks[0].version, ranks[0].source
    others = [
        f"rank {rank} on {each.host} runs {told(each.version, each.source)}"
        for rank, each in ranks.items()
        if (each.version, each.source) != own
    ]
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        text = f"rank 0 runs psnode {told(*own)}, but {', '.join(others[:_NAMED])}{more}"
        if not unlike:
            raise ConfigurationError(f"{text}: bring every host to one commit, or add --allow-unlike-versions")
        _LOG.warning("%s: allowed by --allow-unlike-versions", text)


def threads_of(greetings: Mapping[int, bytes], asked: int) -> dict[int, int]:
    """By rank: how many threads it computes with, `asked` if that is not 0; else its part of the cores of its machine.

    The ranks of a machine share its cores, on emulated hosts with names of their own as well.
    """
    ranks = {rank: Hello.of_any_version(text, rank) for rank, text in greetings.items()}
    together = Counter(each.pool or each.host for each in ranks.values())
    return {rank: asked or max(1, each.cores // together[each.pool or each.host]) for rank, each in ranks.items()}


def lacking(ready: Mapping[int, Ready], model: torch.nn.Module, sized: Collection[str] = ()) -> dict[int, list[str]]:
    """By rank: the tensors of `model`, rank 0's, of which the worker has other bytes; no entry for one that has all.

    `sized`: those that may have another shape there, since rank 0 has loaded what a model sized itself.
    ConfigurationError if a worker's model does not hold tensors of the same names, types and shapes.
    """
    own = inventory.contents(model)
    found: dict[int, list[str]] = {}
    for rank, answer in ready.items():
        for name in (*own, *answer.contents):
            kinds = [_kind(own.get(name), name in sized), _kind(answer.contents.get(name), name in sized)]
            if kinds[0] != kinds[1]:
                raise ConfigurationError(
                    f"rank {rank} has another model than rank 0: {name} is {_told(answer.contents.get(name))} there, "
                    f"{_told(own.get(name))} here; every host needs the same files and package versions"
                )
        if names := [name for name in own if own[name] != answer.contents[name]]:
            found[rank] = names
    return found


def _kind(entry: object, sized: bool) -> object:
    return entry[: 1 if sized else 2] if isinstance(entry, list) else None


def _told(entry: object) -> str:
    return "missing" if not isinstance(entry, list) else f"{entry[0]} of shape {tuple(entry[1])}"


def what_to_send(
    ready: Mapping[int, Ready], model: torch.nn.Module, resumed: checkpoint.Checkpoint | None
) -> dict[int, list[str]]:
    """Tensors of rank 0's initial state that each rank lacks. Where a run goes on, workers have buffers of their own, and no
    weights.
    """
    own = inventory.persistent_buffers(model)
    if resumed is None:
        return lacking(ready, model, inventory.observed(model).keys())
    found = lacking(ready, model, own - inventory.norm_statistics(model).keys())
    trained = {name for name, parameter in parameters(model) if parameter.requires_grad}
    return {rank: [*trained, *(name for name in found.get(rank, []) if name not in own | trained)] for rank in ready}


def besides(found: Lacking, names: Collection[str]) -> dict[int, list[str]]:
    """`found`, but for `names`."""
    kept = {rank: [name for name in missing if name not in names] for rank, missing in found.items()}
    return {rank: missing for rank, missing in kept.items() if missing}


def among(found: Lacking, names: Collection[str]) -> list[int]:
    """The ranks that lack one of `names`."""
    return [rank for rank, missing in found.items() if not set(names).isdisjoint(missing)]


def messages(found: Lacking, model: torch.nn.Module) -> dict[int, int]:
    """Number of STATE frames that `hand_out` sends each rank."""
    values = inventory.tensors(model)
    return {rank: len(list(inventory.chunks(values, names))) for rank, names in found.items()}


def hand_out(link: FrameChannel, found: Lacking, model: torch.nn.Module) -> None:
    """Send every rank the tensors that it lacks, once made for all that lack the same."""
    values = inventory.tensors(model)
    together: dict[tuple[str, ...], list[int]] = {}
    for rank, names in found.items():
        together.setdefault(tuple(names), []).append(rank)
    for names, ranks in together.items():
        for chunk in inventory.chunks(values, names):
            link.send(ranks, Kind.STATE, tensorfile.dump(chunk))
