"""A line at the start of a run about the load of the master's link, if the downlink is not compressed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from psnode.config.names import DENSE
from psnode.config.scheme import Scheme
from psnode.exchange.routes.route import Route
from psnode.exchange.routes.topologies import passed_on
from psnode.master.recorder import StepRecorder
from psnode.plans.roles import MASTER, Layout
from psnode.records.metrics import StepRecord

_LOG = logging.getLogger(__name__)

_PLAIN = frozenset({"identity", "fp16", "bf16"})  # codecs that only round
_LINK = 100e6  # bits a second, of the link in the example


class DownlinkNotice:
    """An observer of records that logs, after the first step of the job, the downlink's share of all bytes.

    Nothing is logged if the downlink's codec does more than round. If the uplink is not compressed either, the line also gives
    the least time in which the bytes of a step pass the busiest link. This is the master's link. If `dealt` is True, each of
    the `workers` ranks has a part of the weights, and the busiest link is the link of each of these ranks. `servers`: the
    number of ranks, master included, that have equal parts of the weights and compute nothing. `passed_on`: workers pass the
    weights on, so the master sends fewer bytes than it receives.
    """

    def __init__(
        self, scheme: Scheme, recorder: StepRecorder, workers: int, *, servers: int = 1, dealt: bool = False,
        passed_on: bool = False,
    ) -> None:  # fmt: skip
        self._scheme = scheme
        self._servers, self._dealt, self._passed_on = servers, dealt, passed_on
        self._accounts = recorder
        self._workers = workers
        self._told = scheme.downlink != DENSE and scheme.downlink not in _PLAIN

    def write(self, record: StepRecord) -> None:
        """Log the line once, when the bytes of the first step are known."""
        up, down = self._accounts.first
        if not self._told and down:
            self._told = True
            text = line(
                self._scheme, up, down, self._workers, servers=self._servers, dealt=self._dealt, passed_on=self._passed_on
            )
            _LOG.info(text)

    def extend(self, last: int) -> None:
        """Do nothing: the line does not depend on the last step."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


def notice_of(scheme: Scheme, recorder: StepRecorder, layout: Layout, routes: Sequence[Route]) -> DownlinkNotice:
    """Return the notice for a job of `layout` on `routes`."""
    roots = {root for route in routes for root in route.roots}
    dealt = bool(roots - {MASTER}) and not layout.servers
    ranks = roots.union(layout.computing) if dealt else layout.computing
    return DownlinkNotice(scheme, recorder, len(ranks), servers=1 + layout.servers, dealt=dealt, passed_on=passed_on(routes))


def line(
    scheme: Scheme, up: int, down: int, workers: int, *, servers: int = 1, dealt: bool = False, passed_on: bool = False
) -> str:
    """Return the line for a step in which `workers` workers together sent `up` bytes to `servers` servers, and received `down`.

    `dealt`: each worker receives the gradients of a part of the weights and sends the weights of this part. `passed_on`: see
    DownlinkNotice.
    """
    text = f"downlink: {scheme.downlink}, {100 * down / (up + down):.0f} % of all bytes"
    if scheme.codec not in _PLAIN:
        return text
    if dealt:
        each = (up + down) / workers
        floor = f"{each / 1e6:.2f} MB each way through every worker's link take {8e3 * each / _LINK:,.0f} ms at 100 Mbit/s"
        return f"{text}; {floor}, the least that a step takes there"
    busiest = (up if passed_on else down) / servers
    link = "the master's" if servers == 1 else "every server's"
    seconds = 8 * busiest / _LINK
    floor = f"{workers} x {busiest / workers / 1e6:.2f} MB through {link} link take {1e3 * seconds:,.0f} ms at 100 Mbit/s"
    return f"{text}; {floor}, the least that a step takes there"
