"""One line at the start of a run whose weights travel down at full size: the load of the master's link."""

from __future__ import annotations

import logging

from psnode.config.names import DENSE
from psnode.config.scheme import Scheme
from psnode.master.recorder import StepRecorder
from psnode.records.metrics import StepRecord

_LOG = logging.getLogger(__name__)

_PLAIN = frozenset({"identity", "fp16", "bf16"})  # codecs that only round
_LINK = 100e6  # bits a second, of the example


class DownlinkNotice:
    """An observer of records: after the first step of the job it tells the share of the bytes that went down.

    It is silent where the downlink is coded. Where the uplink is no smaller either, the line ends with the time that so many
    bytes take at least through one link, the master's.
    """

    def __init__(self, scheme: Scheme, recorder: StepRecorder, workers: int) -> None:
        self._scheme = scheme
        self._accounts = recorder
        self._workers = workers
        self._told = scheme.downlink != DENSE and scheme.downlink not in _PLAIN

    def write(self, record: StepRecord) -> None:
        """Tell once."""
        up, down = self._accounts.first
        if not self._told and down:
            self._told = True
            _LOG.info(line(self._scheme, up, down, self._workers))

    def extend(self, last: int) -> None:
        """Nothing to say."""

    def close(self) -> None:
        """Nothing to say."""


def line(scheme: Scheme, up: int, down: int, workers: int) -> str:
    """The line for a step of `workers` in which `up` and `down` bytes crossed the links, all workers together."""
    text = f"downlink: {scheme.downlink}, {100 * down / (up + down):.0f} % of all bytes"
    if scheme.codec not in _PLAIN:
        return text
    seconds = 8 * down / _LINK
    floor = f"{workers} x {down / workers / 1e6:.2f} MB through the master's link take {1e3 * seconds:,.0f} ms at 100 Mbit/s"
    return f"{text}; {floor}, the least that a step takes there"
