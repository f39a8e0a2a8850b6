"""Interface between the control plane and a shard, or all shards of a run together: rounds, weights and state."""

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
    """Open rounds of the groups. The events of closed groups are posted to the inbox."""

    def admit(self, ranks: Iterable[int], version: int) -> None:
        """From now on, wait also for gradients of `ranks` that are computed on `version` or later."""

    def open(self, now: Round) -> None:
        """Open round `now` for all groups. Before the call, each group must be closed, or open without a gradient."""

    def offer(self, frame: Frame) -> bool:
        """Take a gradient frame. Return False if it comes too late, has come before, or is from a rank that is not awaited."""

    def keep(self, frame: Frame) -> bool:
        """Keep a gradient that comes after the last round, for a resumed run. Return False if the consistency rule drops it."""

    def excuse(self, rank: int, version: int) -> None:
        """Expect no more gradients of `rank` that are computed on `version`. The round does not wait for them."""

    def leave_out(self, rank: int, version: int) -> None:
        """Take the notice of `rank` that it sends no more gradients computed on `version`.

        Shards on other ranks get this notice from `rank` itself, after the gradients that it has sent.
        """

    def withdraw(self, rank: int) -> dict[int, int]:
        """Stop waiting for `rank`. Gradients that it has sent count.

        Returns, by group, the last step of `rank` whose gradient was taken.
        """

    def force(self) -> None:
        """Close all open groups with the gradients received so far, even if a group has none."""

    @property
    def needs_all(self) -> bool:
        """True if workers have parts of the weights. Then the run cannot go on if one of them is lost, and `withdraw` raises."""

    @property
    def holders(self) -> frozenset[int]:
        """The other ranks that update weights.

        If one of them is lost, the run cannot go on, unless each of them updates all weights.
        """

    @property
    def readmits(self) -> bool:
        """True if a worker that was withdrawn may take part again when it has the whole weights."""

    def take(self, frame: Frame) -> object:
        """Return the event in a frame from a shard on another rank; None if the caller need not act on it."""

    def note_squares(self, event: Squares) -> None:
        """Take the squared norms of the groups of this rank's own shard, if the run has shards on other ranks, too."""

    @property
    def untouched(self) -> bool:
        """True if all groups are open and no gradient has come for any of them."""

    @property
    def unchanged(self) -> bool:
        """True if all groups are open. In this case y is still the version on which workers compute the round's gradients."""

    @property
    def idle(self) -> frozenset[int]:
        """Ranks that send nothing more before the open round is complete and the next version is published."""

    @property
    def missing(self) -> frozenset[int]:
        """Ranks whose gradients some open group still awaits."""

    @property
    def gradient_norm(self) -> float | None:
        """L2 norm of the last version's mean gradient before clipping; None without --clip-grad-norm.

        Valid while no group is open.
        """

    def outlier(self) -> str:
        """Return a line about a push that was applied although its norm is out of proportion; "" if there is no such push."""

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent on decoding, updating and sending since the last call, by the name of the work."""


class WeightsHandle(Protocol):
    """Weights x, which updates change, and weights y, which every recipient holds."""

    @property
    def is_remote(self) -> bool:
        """True if the weights are on other ranks, so that `replica`, `digest` and the state must be fetched."""

    def send_to(self, ranks: Iterable[int]) -> None:
        """From now on, send new versions of a group only to its readers in `ranks`. Call this while no group is open."""

    def send_whole(self, ranks: Sequence[int], version: int) -> int:
        """Send y, the weights of `version`, to `ranks`. Each group goes only to its readers in `ranks`.

        Returns the bytes of all frames together.
        """

    def behind(self, rank: int) -> frozenset[int]:
        """Return the ranks that get weights through `rank`, directly or indirectly."""

    @property
    def replica(self) -> Floats:
        """y, the weights that every recipient holds, flat in the order of the plan."""

    def digest(self) -> str:
        """Return xxh3_128 of the bytes of all weights: x, and the weights that are not trained. See Weights.digest."""


class HeldState(Protocol):
    """State of one version, from which a checkpoint is written."""

    def state(self) -> ShardState:
        """Return the state: the model, the optimizer's memories, and y, the weights that every recipient holds."""

    def norms(self) -> Tensors:
        """Return the norms of pushes with which later pushes are compared."""


class StateParts(HeldState, Protocol):
    """State whose parts come from other ranks while later versions are made. Only one thread at a time may call the methods.

    Call `state` and `norms` only after all parts have come.
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
    """State for a checkpoint. Call the methods only while no group is open, except `memory` and `before_change`."""

    def hand_over(self, version: int) -> StateParts | None:
        """Begin to fetch the state of `version`, the newest, from other ranks. Its parts come in events of type StatePart.

        Returns None if the state is on this rank, so that `state` needs no other rank.
        """

    def memory(self) -> list[list[torch.Tensor]]:
        """Return, by group, the tensors of `state` that a later version changes; no tensors if `state` returns copies."""

    def before_change(self, tell: Callable[[int], None]) -> None:
        """From now on, call `tell` with a group whenever the group is about to change.

        `tell` may delay the thread that calls it.
        """

    @property
    def runs_own_code(self) -> bool:
        """True if code from outside psnode may change `memory` between a version's first and last update."""

    def facts(self) -> dict[str, float]:
        """Return facts for a checkpoint's manifest."""

    def waiting(self) -> Tensors:
        """Return the gradients that have already come and wait for the next round."""


class ShardHandle(RoundsHandle, WeightsHandle, StateHandle, Protocol):
    """A shard, or all shards of a run together: rounds, weights and state."""
