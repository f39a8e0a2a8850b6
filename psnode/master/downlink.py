"""Sending the weights down, coded or dense."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from psnode import wire
from psnode.codecs import get_codec
from psnode.codecs.rng import Key
from psnode.link import Link
from psnode.plan import Group, Plan
from psnode.transport.base import Pending
from psnode.wire import Kind

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
DENSE = "dense"
_IDENTITY = get_codec("identity")
_PURPOSE = "downlink"


class Downlink:
    """Keeps y, the weights that every worker holds, and moves it towards x.

    Dense: y is x, and a group's frame replaces it. Coded: the frame carries D = E(x - y) in the codec's contractive form, and
    y += decode(D) here and on every worker, bit for bit alike. What D misses is part of the next x - y: y needs no
    error feedback of its own.
    """

    def __init__(self, spec: str, weights: Floats, plan: Plan, link: Link, workers: Sequence[int], *, seed: int) -> None:
        self._codec = None if spec == DENSE else get_codec(spec).contractive()
        self._x = weights
        self.replica = weights if self._codec is None else weights.copy()
        self._plan = plan
        self._link = link
        self._workers = tuple(workers)
        self._seed = seed
        self._frames: list[tuple[Bytes, list[Pending]] | None] = [None] * len(plan.groups)

    @property
    def differs(self) -> bool:
        """Whether y is apart from x and has to be saved with it."""
        return self.replica is not self._x

    def send(self, group: Group, version: int) -> int:
        """Send the group's part of `version` to every worker; the bytes of all frames. One thread a group at a time."""
        return self._send(group, version, dense=self._codec is None)

    def send_dense(self, group: Group, version: int) -> int:
        """Send the group's y as it is: to workers that have none yet."""
        return self._send(group, version, dense=True)

    def _send(self, group: Group, version: int, *, dense: bool) -> int:
        codec = _IDENTITY if dense or self._codec is None else self._codec
        replica = self.replica[group.start : group.stop]
        values = replica if dense else self._x[group.start : group.stop] - replica
        table = wire.HEADER_BYTES + wire.group_table_bytes(1)
        buffer = self._buffer(group, table + wire.padded(codec.max_nbytes((group.size,))))
        key = Key.derive(self._seed, _PURPOSE, 0, version, group.index, 0)
        payload = codec.encode(values, key, out=buffer[table:])
        if not dense:
            codec.decode_add(payload, replica)
        stop = table + wire.padded(payload.nbytes)
        buffer[table + payload.nbytes : stop] = 0
        wire.write_group_table(buffer[wire.HEADER_BYTES : table], [payload.nbytes])
        kind = Kind.WEIGHTS if dense else Kind.DELTA
        frame = wire.seal(buffer[:stop], kind, sender=0, job=self._link.job, group=group.index, step=version, version=version)
        self._frames[group.index] = (buffer, self._link.send_frame(self._workers, frame))
        return frame.size * len(self._workers)

    def _buffer(self, group: Group, nbytes: int) -> Bytes:
        last = self._frames[group.index]
        if last is not None and last[0].size >= nbytes and all(pending.done for pending in last[1]):
            return last[0]
        return np.empty(nbytes, np.uint8)
