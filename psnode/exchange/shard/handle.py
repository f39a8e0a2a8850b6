"""Interface of a shard, or of all shards of a run together, to the control plane: rounds, weights and state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch

from psnode.codecs.arrays import Floats
from psnode.exchange.shard.shard_events import Squares
from psnode.exchange.shard.state import ShardState
from psnode.protocol.round import Round
from psnode.protocol.wire import Frame

Tensors = dict[str, torch.Tensor]


class RoundsHandle(Protocol):
    """Open rounds. Events of closed groups are posted to the inbox."""

    def admit(self, ranks: Iterable[int], version: int) -> None:
        """Wait for gradients of `ranks` computed on `version` or later."""

    def open(self, now: Round) -> None:
        """Open round `now` for all groups. Before, each group must be closed, or open without a gradient."""

    def offer(self, frame: Frame) -> bool:
        """Take a gradient frame. Return False if it comes too late, for the second time, or from a rank that is not awaited."""

    def keep(self, frame: Frame) -> bool:
        """Keep a gradient that comes after the last round, for a resumed run. Return False if the rule drops it."""

    def excuse(self, rank: int, version: int) -> None:
        """Expect no more gradients of `rank` that are computed on `version`. The round does not wait for them."""

    def leave_out(self, rank: int, version: int) -> None:
        """Take the notice of `rank` that it sends no more gradients computed on `version`.

        Shards on other ranks get this notice from `rank` itself, after the gradients that it has sent.
        """

    def withdraw(self, rank: int) -> dict[int, int]:
        """Stop waiting for `rank`; gradients that it has sent count. Return, by group, its last step whose gradient was taken."""

    def force(self) -> None:
        """Close all open groups with the gradients received so far, even without any gradient."""

    @property
    def needs_all(self) -> bool:
        """True if workers have parts of the weights. Then the run cannot go on without any of them, and `withdraw` raises."""

    @property
    def holders(self) -> frozenset[int]:
        """The other ranks that have parts of the weights. The run cannot go on without any of them: `withdraw` raises."""

    @property
    def readmits(self) -> bool:
        """True if a worker that was withdrawn may take part again when it has the whole weights."""

    def take(self, frame: Frame) -> object:
        """Return the event in a frame from a shard on another rank; None if it needs no action, such as a late ANSWER."""

    def note_squares(self, event: Squares) -> None:
        """Take the squared norms of the groups of the shard on this rank. This shard has only some of the groups."""

    @property
    def untouched(self) -> bool:
        """True if all groups are open and no group has received a gradient."""

    @property
    def unchanged(self) -> bool:
        """True if all groups are open. Then y is still the version on which workers compute the round's gradients."""

    @property
    def idle(self) -> frozenset[int]:
        """Ranks that send nothing more before the open round is complete and the next version is published."""

    @property
    def missing(self) -> frozenset[int]:
        """Ranks whose gradients some open group still awaits."""

    @property
    def gradient_norm(self) -> float | None:
        """L2 norm of the last version's mean gradient before clipping, while no group is open; None without --clip-grad-norm."""

    def outlier(self) -> str:
        """Return a line about a push that was applied although its norm is out of proportion, otherwise ""."""

    def seconds(self) -> dict[str, float]:
        """Return the seconds of decoding, updating and sending since the last call, by name."""


class WeightsHandle(Protocol):
    """Weights x, which updates change, and weights y, which every recipient holds."""

    @property
    def is_remote(self) -> bool:
        """True if the weights are on other ranks, so that `replica`, `digest` and the state must be fetched."""

    def send_to(self, ranks: Iterable[int]) -> None:
        """From now on, send new versions of a group only to its readers in `ranks`. Call this while no group is open."""

    def send_whole(self, ranks: Sequence[int], version: int) -> int:
        """Send y, the weights of `version`, to `ranks`. Each group goes only to its readers in `ranks`.

        Returns the sum of the bytes of all frames.
        """

    def behind(self, rank: int) -> frozenset[int]:
        """Return the ranks that get weights through `rank`, directly or indirectly."""

    @property
    def replica(self) -> Floats:
        """y, flat in the order of the plan."""

    def digest(self) -> str:
        """Return xxh3_128 of the bytes of all weights, both x and frozen weights, see Weights.digest."""


class HeldState(Protocol):
    """State of one version, for a checkpoint."""

    def state(self) -> ShardState:
        """Return model, optimizer and y."""

    def norms(self) -> Tensors:
        """Return the norms with which later pushes are compared."""


class StateParts(HeldState, Protocol):
    """State whose parts come from other ranks while later versions are made. One thread at a time calls the methods.

    `state` and `norms` are called after all parts have come.
    """

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks from which parts come."""

    @property
    def seconds(self) -> float:
        """The time within which all parts should come."""

    def add(self, rank: int, content: bytes) -> bool:
        """Add the part of `rank`, see StatePart. Return True if all parts have come. Raises PsnodeError for an invalid part."""


class StateHandle(HeldState, Protocol):
    """State for a checkpoint. Methods other than `memory` and `before_change` are called while no group is open."""

    def hand_over(self, version: int) -> StateParts | None:
        """Begin to fetch the state of `version`, the newest, from other ranks: its parts come with events of type StatePart.

        Returns None if the state is on this rank, so that `state` needs no other rank.
        """

    def memory(self) -> list[list[torch.Tensor]]:
        """Return, by group, the tensors of `state` that a later version changes; no tensors if `state` returns copies."""

    def before_change(self, tell: Callable[[int], None]) -> None:
        """From now on, call `tell` with every group before the group changes, in a thread that `tell` may delay."""

    @property
    def runs_own_code(self) -> bool:
        """True if, between a version's first and last update, code from outside psnode runs that may change `memory`."""

    def facts(self) -> dict[str, float]:
        """Return facts for a checkpoint's manifest."""

    def waiting(self) -> Tensors:
        """Return the gradients that have already come and wait for the next round."""


class ShardHandle(RoundsHandle, WeightsHandle, StateHandle, Protocol):
    """A shard, or all shards of a run together."""
