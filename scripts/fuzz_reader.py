"""Reader of the inputs of scripts/fuzz.py. It reads an input as a master or a worker does, and judges the result."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from fuzz_inputs import FRAME, GROUP, JOB, PAYLOAD

from psnode.codecs import Codec, Payload, get_codec
from psnode.errors import CheckpointError, CodecError, WireError
from psnode.protocol import messages, wire
from psnode.records.tensorfile import parse
from psnode.records.timeline import parse_events

LARGEST = 1 << 14  # maximum declared coordinates of a payload that is decoded; a master decodes only the number in its plan


class Reader:
    """Reader of single inputs. `decoded` and `refused` count the inputs with these results."""

    def __init__(self) -> None:
        self.decoded = self.refused = 0
        kind, bodies = wire.Kind, messages
        self._bodies: dict[int, Callable[[object], object]] = {
            kind.HELLO: lambda body: bodies.Hello.from_bytes(body, 1),
            kind.CONFIG: lambda body: bodies.Setup.from_bytes(body, 1),
            kind.READY: lambda body: bodies.Ready.from_bytes(body, 1),
            kind.PLAN: lambda body: bodies.Start.from_bytes(body, 1),
            kind.RESHARD: lambda body: bodies.Reshard.from_bytes(body, 1),
            kind.REPORT: lambda body: bodies.Report.from_bytes(body, 1),
            kind.FAILED: lambda body: bodies.Failure.from_bytes(body, 1),
            kind.STATE: lambda body: parse(bytes(body), "the state of rank 1"),
            kind.TRACE: lambda body: parse_events(bytes(body), 1),
        }

    def __call__(self, data: bytes) -> None:
        """Read one input. Any exception from this call is a defect."""
        what, rest = data[0] % 4 if data else PAYLOAD, data[1:]
        try:
            if what == PAYLOAD:
                self._payload(np.frombuffer(rest, np.uint8))
            else:
                frame = _group(rest) if what == GROUP else np.frombuffer(rest, np.uint8).copy()
                self._frame(_sealed(frame) if what == FRAME else frame)
        except WireError as error:
            if what != PAYLOAD and error.source != 1:
                raise AssertionError("the error does not name the sender") from error
            self.refused += 1
        except (CodecError, CheckpointError):
            self.refused += 1
        else:
            self.decoded += 1

    def _frame(self, data: np.ndarray) -> None:
        frame = wire.unpack(data, job=JOB, source=1)
        if frame.kind in (wire.Kind.GRADIENT, wire.Kind.WEIGHTS, wire.Kind.DELTA):
            for part in wire.split_group(frame.body, 2, 1):
                self._payload(part)
        elif frame.kind in self._bodies:
            self._bodies[frame.kind](frame.body)

    def _payload(self, data: np.ndarray) -> None:
        payload = Payload.from_bytes(data)
        if payload.size > LARGEST:
            return
        codec, total = _decoder(payload.stages), np.zeros(payload.size, np.float32)
        with np.errstate(all="ignore"):
            try:
                codec.decode_add(payload, total)
            except CodecError:
                if total.any():
                    raise AssertionError(f"{codec!r} refused a payload and had added a part of it") from None
                raise
            values = codec.decode(payload)
        if values.shape != payload.shape or values.dtype != np.float32:
            raise AssertionError(f"{codec!r} decoded {payload.shape} as {values.dtype} {values.shape}")
        if codec.linear:
            codec.merge([payload, payload])
        support = codec.support(payload)
        if support.size and not 0 <= support.min() <= support.max() < payload.size:
            raise AssertionError(f"{codec!r} names coordinates out of the array")


@cache
def _decoder(stages: tuple[str, ...]) -> Codec:
    """Return a codec with the stages `stages`. It decodes payloads with any parameters, since a payload states its own."""
    name = "+".join(stage for stage in stages if stage != "contractive")
    return get_codec(f"contractive({name})" if "contractive" in stages else name)


def _sealed(frame: np.ndarray) -> np.ndarray:
    if frame.size < wire.HEADER_BYTES:
        return frame
    length = frame.size - wire.HEADER_BYTES
    frame[32:40].view("<u8")[0] = length
    frame[48:52].view("<u4")[0] = wire.checksum(frame)
    return frame


def _group(data: bytes) -> np.ndarray:
    cut = int.from_bytes(data[:2], "little") % (len(data) + 1)
    parts = [data[2 : 2 + cut], data[2 + cut :]]
    frame = wire.GroupFrame(2, sum(wire.padded(len(part)) for part in parts))
    for part in parts:
        frame.room[: len(part)] = np.frombuffer(part, np.uint8)
        frame.take(len(part))
    return frame.seal(wire.Kind.GRADIENT, sender=1, job=JOB, group=0, step=1, version=0)
