"""Memory that the exchange will take on a master and on a worker, by purpose, computed before a job starts.

The unit is a vector, which has one float32 value per trained parameter. The figures do not include activations of the forward
pass, libraries, or buffers that every program has. So they depend only on the plan, the settings and the number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from psnode.config import Config
from psnode.config.train_settings import OWN
from psnode.exchange.expected import step_bytes
from psnode.exchange.routes.topologies import shares_of
from psnode.plans.coding import Coding
from psnode.tasks.optimizers import COORDINATEWISE, made, memories_of

_SIDE = 64  # rows, and columns, of the matrix on which an optimizer of whole tensors is tried


class Use(NamedTuple):
    """Bytes that one rank holds for one purpose."""

    purpose: str
    nbytes: float


class Footprint(NamedTuple):
    """Memory use of the master, each worker and each server other than the master. `vector`: bytes of the trained weights.

    Each memory use is a list of purposes with their bytes.
    """

    vector: int
    master: tuple[Use, ...]
    worker: tuple[Use, ...]
    server: tuple[Use, ...] = ()

    @property
    def master_bytes(self) -> float:
        """Bytes that the master holds in total."""
        return sum(use.nbytes for use in self.master)

    @property
    def worker_bytes(self) -> float:
        """Bytes that one worker holds in total."""
        return sum(use.nbytes for use in self.worker)

    @property
    def server_bytes(self) -> float:
        """Bytes that one server other than the master holds in total."""
        return sum(use.nbytes for use in self.server)


def footprint(coding: Coding, config: Config, workers: int) -> Footprint:
    """Return the memory use of the ranks in a job of `workers` workers.

    The call codes some values to estimate the size of payloads.
    """
    vector = 4 * coding.plan.size
    up, down = step_bytes(coding)
    root, worker = _root(vector, up, down, coding, config, workers), _worker(vector, up, down, coding)
    shares, model = shares_of(config.topology, workers), Use("weights", vector)
    master = root
    if shares.master < 1:
        master = (model, *_to_update(root, shares.master), _gathered(vector, shares.server or shares.worker, coding, config))
    packed = Use("its state, packed for a checkpoint", vector * _state_vectors(coding, config))
    server = (model, *_to_update((*root, packed), shares.server)) if config.servers else ()
    return Footprint(vector, tuple(master), (*worker, *_to_update((*root, packed), shares.worker)), server)


def _to_update(root: Sequence[Use], share: float) -> Sequence[Use]:
    """Return the memory that a rank needs to update the `share` (0 to 1) of the weights. `root`: the memory for all weights."""
    return [Use(f"{'its part' if share < 1 else 'to update'}: {use.purpose}", share * use.nbytes) for use in root if share]


def _state_vectors(coding: Coding, config: Config) -> float:
    """Return the number of vectors in the state of a checkpoint."""
    return 1 + optimizer_vectors(coding, config) + (coding.down is not None) + (config.ema_decay is not None)


def _gathered(vector: int, share: float, coding: Coding, config: Config) -> Use:
    """Return the memory in which the master gathers the state of all shards for a checkpoint.

    Besides this state, it holds the answer of one shard three times: as a frame, as a file, and as tensors. If the answer is
    the whole state, its tensors become the state and are not held twice. After all answers, the flat vector of all weights
    takes memory instead. `share`: the part (0 to 1) of the weights that one shard has.
    """
    vectors = _state_vectors(coding, config)
    return Use("state of all ranks, for a checkpoint", vector * (vectors + max(1.0, (2 if share == 1 else 3) * share * vectors)))


def _root(vector: int, up: float, down: float, coding: Coding, config: Config, workers: int) -> Sequence[Use]:
    memories = optimizer_vectors(coding, config)
    uses = [
        Use("weights", vector),
        Use("sum of the gradients", vector),
        Use(f"memories of {config.optimizer}", memories * vector),
        Use("weights as the workers have them", vector if coding.down is not None else 0),
        Use("weights that changes lead to", vector if coding.scheme.lead(config.downlink_lead) else 0),
        Use("moving average", vector if config.ema_decay is not None else 0),
        Use("gradients that come in, coded", workers * up),
        Use("weights that go out", down),
    ]
    return [use for use in uses if use.nbytes]


def _worker(vector: int, up: float, down: float, coding: Coding) -> Sequence[Use]:
    feedback, size = coding.feedback, coding.plan.size
    compressed = sum(each.segment.size for each in coding.segments if not each.up.lossless)
    kept = [name for name in feedback.init(0) if name not in feedback.scratch]
    whole = size - (compressed if feedback.only_adds and feedback.memory is not None else 0)
    uses = [
        Use("weights", vector),
        Use("gradient", vector),
        *(Use(f"memory {name}", 4 * (size if coding.scheme.clips else compressed)) for name in kept),
        *(Use(f"room {name}", 4 * compressed) for name in sorted(feedback.scratch)),
        Use("gradient side by side", 4 * whole),
        Use("gradient coded", up),
        Use("weights that come in", down),
    ]
    return [use for use in uses if use.nbytes]


def optimizer_vectors(coding: Coding, config: Config) -> float:
    """Return the number of vectors that the optimizer keeps. It is unknown for a task's own optimizer: the result is 0."""
    if config.optimizer == "sgd":
        return float(coding.scheme.momentum > 0 or (coding.gathering is not None and config.weight_decay > 0))
    if config.optimizer == OWN:
        return 0.0
    if config.optimizer in COORDINATEWISE:
        return float(len(memories_of(config)))
    tried = nn.Parameter(torch.ones(_SIDE, _SIDE))
    tried.grad = torch.ones_like(tried)
    optimizer = made(config, coding.scheme.momentum, tried, 0.01)
    optimizer.step()
    tensors = [value for value in optimizer.state[tried].values() if torch.is_tensor(value)]
    return round(sum(value.numel() for value in tensors) / tried.numel(), 1)
