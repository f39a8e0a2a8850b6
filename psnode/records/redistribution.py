"""State with which workers resume from a checkpoint: a worker's own part, or means over the workers.

Means are used for a worker without a part in the checkpoint, and for all workers if their number has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from psnode.protocol.messages import Ready
from psnode.records import tensorfile
from psnode.records.checkpoint import LAYOUT, MODEL, PLACE, Checkpoint, is_worker_file, worker_file
from psnode.records.state_names import CODEBOOK, FEEDBACK, RATE, state_of

if TYPE_CHECKING:
    import torch


def resharded(found: Checkpoint, answer: Ready) -> bytes:
    """Return the state with which every worker resumes if the checkpoint was written with another number of workers.

    The state holds the means of the workers' feedback state and buffers. The mean of the workers' residuals is preserved,
    since the weights still have to receive this mean. If residuals have a learning rate, the mean of residual times rate is
    taken, in units of weights. State that is not floating-point (a codebook) is taken from the first worker.
    """
    names = [name for name in found.facts["files"] if is_worker_file(name)]
    sums: dict[str, torch.Tensor] = {}
    for name in names:
        for key, value in _owed(state_of(found, name)).items():
            if key.startswith(FEEDBACK) and value.is_floating_point():
                sums[key] = value.double() + sums.get(key, 0.0)
            elif key.startswith(FEEDBACK):
                sums.setdefault(key, value)
    means = {key: value / len(names) if value.is_floating_point() else value for key, value in sums.items()}
    means = {key: value.float() if value.is_floating_point() else value for key, value in _owed(means, back=True).items()}
    return tensorfile.dump({**means, **_mean_buffers(found, answer), **_mean_place(found)})


def _owed(memories: Mapping[str, torch.Tensor], *, back: bool = False) -> dict[str, torch.Tensor]:
    """Return `memories` in units of weights: feedback state of a tensor with a learning rate is multiplied by this rate.

    The product is in float64. If `back` is True, the state is divided by the rate instead. The rates themselves
    (psnode.records.state_names) and codebooks are not changed.
    """
    import torch

    found = dict(memories)
    for key, value in memories.items():
        memory, _, tensor = key.removeprefix(FEEDBACK).partition("/")
        rate = memories.get(f"{FEEDBACK}{RATE}/{tensor}")
        if key.startswith(FEEDBACK) and memory not in (RATE, CODEBOOK) and rate is not None:
            factor = torch.where(rate > 0, rate.double(), 1.0)
            found[key] = value.double() / factor if back else value.double() * factor
    return found


def worker_state(found: Checkpoint, rank: int, answer: Ready) -> bytes | None:
    """Return the state with which worker `rank` resumes; None if the worker reads its file itself.

    A worker reads its file if it shares the run's directory and the names in the file are those of the present layout.
    """
    name = worker_file(rank)
    if not found.has(name):
        return tensorfile.dump({**_mean_buffers(found, answer), **_mean_place(found)})
    if found.layout < LAYOUT or found.renaming is not str:
        return tensorfile.dump(state_of(found, name))
    return None if answer.shared_directory else found.read(name)


def spare_state(found: Checkpoint, answer: Ready) -> bytes:
    """Return the state with which a spare resumes: the workers' mean buffers, even if the checkpoint has a part of the rank."""
    return tensorfile.dump(_mean_buffers(found, answer))


def _mean_place(found: Checkpoint) -> dict[str, torch.Tensor]:
    """Return the mean of the workers' positions in their shares of the data; empty if the checkpoint has no positions."""
    import torch

    parts = [found.tensors(name) for name in found.facts["files"] if is_worker_file(name)]
    places = [part[PLACE] for part in parts if PLACE in part]
    alike = [int(place[0]) for place in places if place[1] == places[0][1]]  # places with the same number of shares
    return {PLACE: torch.tensor([sum(alike) // len(alike), int(places[0][1])])} if alike else {}


def _mean_buffers(found: Checkpoint, answer: Ready) -> dict[str, torch.Tensor]:
    parameters = {tensor for tensor, _ in answer.tensors}
    return {f"buffer/{key}": value for key, value in found.tensors(MODEL).items() if key not in parameters}
