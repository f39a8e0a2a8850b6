"""Loop of a shard on a rank other than the master. In a thread, it takes gradients from workers and orders from the master."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from psnode.config import Config
from psnode.errors import DeadlineExceededError, TransportError, WireError
from psnode.exchange.routes.route import Route
from psnode.exchange.shard.consistency import Rule
from psnode.exchange.shard.remote.gathered_state import state_files
from psnode.exchange.shard.remote.handed_state import HandedState
from psnode.exchange.shard.remote.kept_frames import KeptFrames
from psnode.exchange.shard.remote.own_shard import orders_of
from psnode.exchange.shard.remote.shard_messages import (
    Order,
    ShardEvent,
    pack_event,
    pack_files,
    pack_result,
    unpack_files,
)
from psnode.exchange.shard.remote.state_sender import StateSender
from psnode.exchange.shard.shard import Shard
from psnode.exchange.shard.shard_events import GroupClosed, NotApplied, Refused, Scaled, Squares, Took
from psnode.exchange.update.weight_vector import WeightsWithoutModel
from psnode.exchange.update.whole_updates import MakeOptimizer
from psnode.plans.coding import Coding
from psnode.plans.part import part_of
from psnode.plans.roles import MASTER
from psnode.protocol import wire
from psnode.protocol.channel import SHARD_TAG, TAG, FrameChannel, RemoteFailureError
from psnode.protocol.messages import Start
from psnode.protocol.round import Round
from psnode.protocol.wire import HEADER_BYTES, Frame, Kind
from psnode.records.timeline import Tracer
from psnode.tasks.parameter_groups import ParameterGroup
from psnode.transport.base import Transport

_LONG = 3600.0  # seconds of one wait, after which the thread waits again
_EARLIER = 4  # number of rounds whose learning rates are kept


class _Closing:
    """Event: this rank leaves the job, and the server must end."""


class ShardServer:
    """Server of the groups that have this rank as a root. It runs in a thread until `close`.

    `weights`: the rank's weights at the start, float32, flat in the order of the plan, on the host; they are copied.
    `withdrawn(rank)` is called in the server's thread when no more gradients go to `rank`. If the server fails, it reports
    this to the master.
    """

    def __init__(
        self,
        transport: Transport,
        start: Start,
        coding: Coding,
        config: Config,
        rule: Rule,
        routes: Sequence[Route],
        weights: torch.Tensor,
        tracer: Tracer,
        *,
        parameter_groups: Sequence[ParameterGroup] = (),
        own_optimizer: MakeOptimizer | None = None,
        withdrawn: Callable[[int], None] = lambda rank: None,
    ) -> None:
        self._link = link = FrameChannel(transport, SHARD_TAG, to=TAG, watched={MASTER})
        link.job, step = start.job, start.step
        plan = coding.plan
        part = part_of(plan, [group for group, route in enumerate(routes) if link.rank in route.roots])
        self._groups = frozenset(part.groups)
        self._rates: dict[int, float] = {}  # by version
        self._shard = Shard(
            coding, part.groups, config, WeightsWithoutModel.of(part, weights), link, rule, self._rate, routes, tracer,
            parameter_groups=parameter_groups, own_optimizer=own_optimizer,
        )  # fmt: skip
        self._states = StateSender(link, self._shard, tracer, config.checkpoint_memory)
        self._saves_amid = config.saves_amid
        self._unfinished: set[int] = set()
        self._version = step - 1  # version of the open round, or of the last round
        # frames of the next round, which the master has not opened here yet; by sender and group, with group -1 for SKIP_STEP
        self._early: dict[tuple[int, int], Frame] = {}
        self._received = 0  # bytes of gradients from other ranks since the last Took
        # if other shards add the same gradients: the frames of the open round, and the ranks whose frames are no longer taken
        self._kept = KeptFrames() if any(len(routes[group].roots) > 1 for group in part.groups) else None
        self._gone: set[int] = set()
        self._withdrawn = withdrawn
        self._orders: Mapping[str, Callable[..., Any]] = {
            **orders_of(self._shard),
            "open": self._open,
            "have": self._have,
            "withdraw": self._withdraw,
            "hand_over": self._states.begin,
        }
        self._thread = threading.Thread(target=self._run, name=f"shard-{link.rank}", daemon=True)
        self._thread.start()

    @staticmethod
    def serves(routes: Iterable[Route], rank: int) -> bool:
        """Return True if `rank` is a root of some group."""
        return any(rank in route.roots for route in routes)

    def close(self) -> None:
        """Finish all queued work and end the threads."""
        self._link.inbox.post(_Closing())
        self._thread.join()

    def _rate(self, now: Round) -> float:
        return self._rates[now.version]

    def _run(self) -> None:
        with self._shard:
            try:
                while not isinstance(event := self._next(), _Closing):
                    self._handle(event)
            except (TransportError, RemoteFailureError):  # the rank's main thread ends with the same error
                return
            except (Exception, SystemExit) as error:
                self._link.fail(MASTER, error)
            finally:
                self._states.close()

    def _next(self) -> object:
        while True:
            try:
                return self._link.next(_LONG)
            except DeadlineExceededError:
                continue
            except WireError as error:
                if error.source in (None, MASTER):
                    raise
                return error

    def _handle(self, event: object) -> None:
        match event:
            case Frame(kind=Kind.GRADIENT | Kind.SKIP_STEP, sender=rank):
                if event.kind is Kind.GRADIENT and rank != self._link.rank:
                    self._received += HEADER_BYTES + event.body.size
                self._take(event)
            case Frame(kind=Kind.ORDER, sender=0):
                self._obey(event)
            case Frame(kind=Kind.PASSED_ON, sender=0):
                self._take_passed_on(event)
            case Frame(kind=Kind.STATE, sender=0):
                files, facts = unpack_files(event.body, MASTER)
                self._shard.take_up(HandedState.of(files, facts))
                event.release()
            case Frame():
                self._tell(WireError(f"a shard does not expect {event.kind.name} frames", event.sender))
                event.release()
            case GroupClosed(group=group):
                self._unfinished.discard(group)
                if not self._unfinished:
                    received, self._received = self._received, 0
                    self._tell(Took(self._link.rank, self._shard.seconds(), received))
                self._tell(event)
            case Squares() | Refused() | Scaled() | NotApplied() | WireError():
                self._tell(event)

    def _take(self, frame: Frame) -> None:
        """Offer a gradient to the shard, or keep it if the master has not opened its round here yet.

        A gradient may come before the round is opened, since frames of different ranks come in any order. SKIP_STEP is treated
        in the same way. It means that no more gradients of its sender come in the round.
        """
        gradient = frame.kind is Kind.GRADIENT
        key = frame.sender, frame.group if gradient else -1
        if frame.sender in self._gone:
            frame.release()
        elif frame.version == self._version + 1 and key not in self._early and (not gradient or frame.group in self._groups):
            self._early[key] = frame
        elif not gradient:
            self._shard.leave_out(frame.sender, frame.version)
            frame.release()
        elif not self._offer(frame):
            frame.release()

    def _offer(self, frame: Frame) -> bool:
        """Offer a gradient to the shard. If other shards may need its frame, also keep the frame until the next round opens."""
        if self._kept is None or frame.sender == self._link.rank:
            return self._shard.offer(frame)
        taken = self._shard.offer(self._kept.lent(frame))
        if taken:
            self._kept.add(frame)
        return taken

    def _take_passed_on(self, frame: Frame) -> None:
        """Offer the gradient of a lost worker, which the master has fetched from another shard."""
        passed_on = wire.unpack(frame.body, job=self._link.job, release=frame.release)
        if passed_on.kind is not Kind.GRADIENT or passed_on.sender not in self._gone:
            raise WireError(f"the master has passed on a {passed_on.kind.name} frame of rank {passed_on.sender}", MASTER)
        if not self._shard.offer(passed_on):
            frame.release()

    def _have(self, rank: int) -> list[int]:
        """Take no more frames of the lost `rank`. Return the groups for which its gradient in the open round has already come."""
        self._gone.add(rank)
        for key in [key for key in self._early if key[0] == rank]:
            self._early.pop(key).release()
        return [] if self._kept is None else self._kept.groups(rank)

    def _withdraw(self, rank: int) -> None:
        """Go on without `rank`. Its gradients that have already come count."""
        self._have(rank)
        self._shard.withdraw(rank)
        self._withdrawn(rank)

    def _open(self, version: int, first_step: int, steps: int, lr: float) -> None:
        """Open a round, and take the frames of this round that have come before the call."""
        self._rates[version] = lr
        self._rates.pop(version - _EARLIER, None)
        self._version, self._unfinished = version, set(self._groups)
        if self._kept is not None:
            self._kept.clear()
        self._shard.open(Round(version, first_step, steps))
        if self._saves_amid:
            self._states.prepare()
            self._saves_amid = False
        early, self._early = self._early, {}
        for frame in early.values():
            self._take(frame)

    def _obey(self, frame: Frame) -> None:
        order = Order.from_bytes(frame.body, frame.sender)
        frame.release()
        if order.name == "state":
            self._link.send(MASTER, Kind.ANSWER, pack_files(state_files(self._shard), {}), step=frame.step)
            return
        if order.name == "next_piece":
            self._states.answer(frame.step)
            return
        if order.name == "hand" and self._kept is not None:
            self._link.send(MASTER, Kind.ANSWER, self._kept.sealed(job=self._link.job, **order.arguments), step=frame.step)
            return
        result = self._orders[order.name](**order.arguments)
        if result is not None:
            self._link.send(MASTER, Kind.ANSWER, pack_result(result), step=frame.step)

    def _tell(self, event: ShardEvent) -> None:
        self._link.send(MASTER, Kind.EVENT, pack_event(event))
