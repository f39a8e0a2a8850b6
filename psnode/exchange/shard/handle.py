"""All that the control plane asks of a shard, wherever its groups lie: rounds, weights and state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch

from psnode.codecs.arrays import Floats
from psnode.exchange.shard.state import ShardState
from psnode.protocol.round import Round
from psnode.protocol.wire import Frame

Tensors = dict[str, torch.Tensor]


class RoundsHandle(Protocol):
    """Open rounds. Events of closed groups come in the inbox."""

    def admit(self, ranks: Iterable[int], version: int) -> None:
        """Wait for gradients of `ranks` from the round of `version` on, which is opened next."""

    def open(self, now: Round) -> None:
        """Open round `now` for its groups. All of them are closed, or untouched."""

    def offer(self, frame: Frame) -> bool:
        """Take a gradient frame; False if it comes too late or twice, or from a rank that is not awaited."""

    def keep(self, frame: Frame) -> bool:
        """Take a gradient that comes after the last round, for a run that goes on later; False if the rule drops it."""

    def excuse(self, rank: int, version: int) -> None:
        """Nothing more that was computed on `version` comes from `rank`: its round does not wait for it."""

    def withdraw(self, rank: int) -> dict[int, int]:
        """Wait for `rank` no more; its gradients count. Returns by group the last of its steps that was taken."""

    def force(self) -> None:
        """Close all open groups with the gradients received so far, even if there are none."""

    @property
    def untouched(self) -> bool:
        """True if all groups are open and no gradient of any has come."""

    @property
    def idle(self) -> frozenset[int]:
        """The ranks that have nothing to send before the version that follows the open round's."""

    @property
    def missing(self) -> frozenset[int]:
        """The ranks whose gradients some open group awaits."""

    @property
    def gradient_norm(self) -> float | None:
        """L2 norm of the last version's mean gradient before clipping; None without --clip-grad-norm. While no group is open."""

    def outlier(self) -> str:
        """Tell of a push that is out of all proportion and in the weights all the same; else nothing."""

    def seconds(self) -> dict[str, float]:
        """Seconds of decoding, updating and sending since the last call, by name."""


class WeightsHandle(Protocol):
    """Weights x, which are updated, and y, which every recipient holds."""

    def send_to(self, ranks: Iterable[int]) -> None:
        """Send new versions to `ranks` alone, each group to those of them that its route names. While no group is open."""

    def send_whole(self, ranks: Sequence[int], version: int) -> int:
        """Send y, which is that of `version`, to `ranks`, each group to those that its route names; the bytes of all frames."""

    @property
    def replica(self) -> Floats:
        """y: flat, in the order of the plan."""

    def digest(self) -> str:
        """xxh3_128 of the bytes of all weights, x and frozen ones, as Weights.digest says."""


class StateHandle(Protocol):
    """State for a checkpoint. While no group is open, but for `memory` and `before_change`."""

    def state(self) -> ShardState:
        """Model, optimizer and y, for a checkpoint."""

    def memory(self) -> list[list[torch.Tensor]]:
        """By group of the plan the tensors of `state` that a later version changes. Nothing where `state` is copies."""

    def before_change(self, tell: Callable[[int], None]) -> None:
        """From now on call `tell` with every group that is about to change, in a thread that it may hold up."""

    @property
    def runs_own_code(self) -> bool:
        """True if code from outside psnode runs between the first update of a version and the last, and `memory` changes."""

    def norms(self) -> Tensors:
        """The norms that later pushes are compared with."""

    def facts(self) -> dict[str, float]:
        """Facts for a checkpoint's manifest."""

    def waiting(self) -> Tensors:
        """The gradients that have come and wait for the next round."""


class ShardHandle(RoundsHandle, WeightsHandle, StateHandle, Protocol):
    """A shard, or all shards of a run together."""
