"""A line at the start of a run about the load of the master's link, if the downlink is not compressed."""

from __future__ import annotations

import logging

from psnode.config.names import DENSE
from psnode.config.scheme import Scheme
from psnode.master.recorder import StepRecorder
from psnode.records.metrics import StepRecord

_LOG = logging.getLogger(__name__)

_PLAIN = frozenset({"identity", "fp16", "bf16"})  # codecs that only round
_LINK = 100e6  # bits a second, of the link in the example


class DownlinkNotice:
    """An observer of records that logs, after the first step of the job, the downlink's share of all bytes.

    It logs nothing if the downlink is coded. If the uplink is not compressed either, the line also gives the least time in which
    the bytes of a step pass the busiest link: the master's, or every worker's if the weights are `dealt` among the workers.
    `passed_on`: workers pass the weights on, so that the master sends fewer bytes than it receives.
    """

    def __init__(
        self, scheme: Scheme, recorder: StepRecorder, workers: int, *, dealt: bool = False, passed_on: bool = False
    ) -> None:
        self._scheme = scheme
        self._dealt, self._passed_on = dealt, passed_on
        self._accounts = recorder
        self._workers = workers
        self._told = scheme.downlink != DENSE and scheme.downlink not in _PLAIN

    def write(self, record: StepRecord) -> None:
        """Log the line once, when the bytes of the first step are known."""
        up, down = self._accounts.first
        if not self._told and down:
            self._told = True
            _LOG.info(line(self._scheme, up, down, self._workers, dealt=self._dealt, passed_on=self._passed_on))

    def extend(self, last: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def line(scheme: Scheme, up: int, down: int, workers: int, *, dealt: bool = False, passed_on: bool = False) -> str:
    """Return the line for a step in which all `workers` together sent `up` and received `down` bytes.

    `dealt`: every worker receives the gradients and sends the weights of a part. `passed_on`: see DownlinkNotice.
    """
    text = f"downlink: {scheme.downlink}, {100 * down / (up + down):.0f} % of all bytes"
    if scheme.codec not in _PLAIN:
        return text
    if dealt:
        each = (up + down) / workers
        floor = f"{each / 1e6:.2f} MB each way through every worker's link take {8e3 * each / _LINK:,.0f} ms at 100 Mbit/s"
        return f"{text}; {floor}, the least that a step takes there"
    busiest = up if passed_on else down
    seconds = 8 * busiest / _LINK
    floor = f"{workers} x {busiest / workers / 1e6:.2f} MB through the master's link take {1e3 * seconds:,.0f} ms at 100 Mbit/s"
    return f"{text}; {floor}, the least that a step takes there"
