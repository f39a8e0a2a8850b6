"""Trial runs: a few steps with a plan, to measure the duration of its rounds with this model, these links and these processors.

Afterwards the model has its earlier values again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import median

import torch

from psnode.config import Config
from psnode.config.scheme import Scheme
from psnode.config.train_settings import OWN
from psnode.errors import WireError
from psnode.exchange.routes.topologies import routes_of
from psnode.exchange.shard.consistency import Synchronous
from psnode.exchange.shard.handle import RoundsHandle
from psnode.exchange.shard.shard import Shard
from psnode.exchange.shard.shard_events import GroupClosed, Refused
from psnode.exchange.update.served_model import ServedModel
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan
from psnode.plans.roles import Layout
from psnode.protocol.channel import FrameChannel, StopRequest
from psnode.protocol.messages import Ready, Start
from psnode.protocol.round import Round
from psnode.protocol.wire import Flag, Frame, Kind, pack_groups
from psnode.records.timeline import Tracer

ROUNDS = 7
_COLD = 2  # first rounds, whose durations are used only if there are no later rounds
_PATIENCE = 5  # longest wait for a frame, in pause deadlines, since large frames take long on slow links
_LONG = 3.0  # seconds after which no further round begins


class TrialRun:
    """The master's side of trial steps with `plan`.

    Every worker starts from the weights that it already holds. Each round waits for the gradients of all workers. `ready`:
    the READY message of every worker. Forward and backward passes overlap with transfers, as in the real run.
    """

    def __init__(
        self, link: FrameChannel, config: Config, scheme: Scheme, model: torch.nn.Module, plan: Plan, ready: Mapping[int, Ready]
    ) -> None:
        self._link, self._config, self._scheme, self._model, self._plan = link, config, scheme, model, plan
        self._workers, self._first = tuple(sorted(ready)), ready[min(ready)]

    def run(self, steps_per_epoch: int, lr: float) -> float:
        """Return the median duration of a round in seconds. Raises PeerLostError, or RemoteFailureError for a worker's error."""
        start = Start(
            self._plan.to_dict(), self._link.job, 0, ROUNDS, steps_per_epoch, None, False, rehearsal=True,
            late=self._first.late, waits=bool(self._first.waits), scheme=self._scheme.to_dict(),
        )  # fmt: skip
        before = {name: value.clone() for name, value in self._model.state_dict().items()}
        self._link.send(self._workers, Kind.PLAN, start.to_bytes())
        config = replace(self._config, norm_cap=0.0, ema_decay=None)
        if config.optimizer == OWN:
            config = replace(config, optimizer="sgd")  # the task's own optimizer would remember these steps
        rule, tracer = Synchronous(len(self._workers)), Tracer(0, enabled=False)
        plan, weights = self._plan, ServedModel(self._model, self._plan, torch.empty(self._plan.size))
        routes = routes_of(Layout(len(self._workers)), plan)  # spares take no part
        coding = Coding(plan, self._scheme)
        with Shard(coding, range(len(plan.groups)), config, weights, self._link, rule, lambda now: lr, routes, tracer) as shard:
            seconds = median(self._rounds(shard))
        self._model.load_state_dict(before)
        return seconds

    def _rounds(self, shard: RoundsHandle) -> list[float]:
        """Run rounds and return the seconds of each measured round."""
        shard.admit(self._workers, 0)
        times, stopping, requests = [time.monotonic()], False, list[object]()
        while not stopping:
            shard.open(Round.after(len(times) - 1))
            requests += self._round(shard)
            times.append(time.monotonic())
            version, passed = len(times) - 1, times[-1] - times[0]
            stopping = version == ROUNDS or (version >= _COLD and passed > _LONG)
            flags = Flag.STOP if stopping else Flag.NONE
            self._link.send(self._workers, Kind.VERSION_COMPLETE, pack_groups([], 0), step=version, version=version, flags=flags)
        self._link.inbox.put_back(requests)
        found = [after - before for before, after in pairwise(times)]
        return found[_COLD:] or found[-1:]

    def _round(self, shard: RoundsHandle) -> list[object]:
        """Wait until every group is closed and every worker has reported. Return the requests to stop that have come."""
        groups = {group.index for group in self._plan.groups}
        silent, requests = set(self._workers), list[object]()
        while groups or silent:
            event = self._link.next(_PATIENCE * self._config.pause_deadline)
            match event:
                case Frame(kind=Kind.GRADIENT):
                    if not shard.offer(event):
                        event.release()
                case Frame(kind=Kind.SKIP_STEP):
                    shard.leave_out(event.sender, event.version)
                case Frame(kind=Kind.REPORT):
                    silent.discard(event.sender)
                case GroupClosed():
                    groups.discard(event.group)
                case Refused():
                    raise WireError(f"a part of its gradient cannot be decoded: {event.error}", event.sender)
                case StopRequest() | Frame(kind=Kind.STOP_REQUEST):
                    requests.append(event)
        return requests
