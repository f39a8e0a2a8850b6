"""Agreement of all ranks with rank 0 on the commit of psnode and on the model's tensors.

Tensors are compared by hash, and rank 0 sends the tensors that differ.
"""

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
from psnode.tasks import model_tensors
from psnode.tasks.tensor_names import parameters

_LOG = logging.getLogger(__name__)

Lacking = Mapping[int, Sequence[str]]
_NAMED = 4  # ranks that an error message names


def require_one_version(greetings: Mapping[int, bytes], *, unlike: bool = False) -> None:
    """Refuse ranks whose psnode has another version or source than rank 0. `greetings`: the HELLO of every rank.

    Raises ConfigurationError that names the ranks, their hosts and versions. If `unlike` is True, a warning is logged
    instead. Raises WireError for a malformed greeting.
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
    """Return for each rank the number of threads for its computation.

    This is `asked`. If `asked` is 0, it is an equal part of the cores of the rank's machine. The ranks of a machine share
    its cores even if they run on emulated hosts with different names.
    """
    ranks = {rank: Hello.of_any_version(text, rank) for rank, text in greetings.items()}
    together = Counter(each.pool or each.host for each in ranks.values())
    return {rank: asked or max(1, each.cores // together[each.pool or each.host]) for rank, each in ranks.items()}


def lacking(ready: Mapping[int, Ready], model: torch.nn.Module, sized: Collection[str] = ()) -> dict[int, list[str]]:
    """Return by rank the names of tensors whose bytes differ from the tensors of `model`, which is the model of rank 0.

    Ranks without such tensors have no entry. `sized`: names of tensors that may have another shape on a worker, because the
    model sizes them by its data; the worker takes the shape that rank 0 has loaded. Raises ConfigurationError if the tensors
    of a worker's model have other names, dtypes or shapes.
    """
    own = model_tensors.contents(model)
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
    """Return by rank the names of tensors of rank 0's state that rank 0 has to send.

    In a new run these are the tensors that differ. In a resumed run they are all trained weights, and other tensors that differ.
    Buffers are not sent to resumed workers, which restore their own buffers.
    """
    own = model_tensors.persistent_buffers(model)
    if resumed is None:
        return lacking(ready, model, model_tensors.observed(model).keys())
    found = lacking(ready, model, own - model_tensors.norm_statistics(model).keys())
    trained = {name for name, parameter in parameters(model) if parameter.requires_grad}
    return {rank: [*trained, *(name for name in found.get(rank, []) if name not in own | trained)] for rank in ready}


def besides(found: Lacking, names: Collection[str]) -> dict[int, list[str]]:
    """Return `found` without the tensors in `names`, and without the ranks that then lack no tensor."""
    kept = {rank: [name for name in missing if name not in names] for rank, missing in found.items()}
    return {rank: missing for rank, missing in kept.items() if missing}


def among(found: Lacking, names: Collection[str]) -> list[int]:
    """Return the ranks that lack at least one of the tensors `names`."""
    return [rank for rank, missing in found.items() if not set(names).isdisjoint(missing)]


def messages(found: Lacking, model: torch.nn.Module) -> dict[int, int]:
    """Return, for each rank, the number of STATE frames that `hand_out` sends to it."""
    values = model_tensors.tensors(model)
    return {rank: len(list(model_tensors.chunks(values, names))) for rank, names in found.items()}


def hand_out(link: FrameChannel, found: Lacking, model: torch.nn.Module) -> None:
    """Send every rank the tensors that it lacks. Frames are made once for all ranks that lack the same tensors."""
    values = model_tensors.tensors(model)
    together: dict[tuple[str, ...], list[int]] = {}
    for rank, names in found.items():
        together.setdefault(tuple(names), []).append(rank)
    for names, ranks in together.items():
        for chunk in model_tensors.chunks(values, names):
            link.send(ranks, Kind.STATE, tensorfile.dump(chunk))
