"""Frames. A message between two ranks consists of a fixed header and a body (docs/wire-format.md).

    offset  bytes  field           little-endian, unsigned
         0      4  magic           "PSND"
         4      1  protocol        1
         5      1  kind            see Kind
         6      2  flags           see Flag
         8      4  sender          rank
        12      4  group           index in the plan, 0 if the frame is not about a group
        16      8  step            1, 2, ...; 0 before the first step
        24      8  version         of the weights: the number of finished updates
        32      8  body length
        40      8  job             digest of configuration, scheme, plan and this start of the job; 0 until PLAN
        48      4  CRC32C          of bytes 0..47 and the body (RFC 3720, appendix B.4)
        52         body

The body of a group frame is a count n, n payload lengths (both uint32), and the n payloads. Each payload is padded with zeros to
a multiple of 4 bytes, so that float32 payloads stay aligned. GRADIENT and DELTA hold one payload per segment. GRADIENT holds one
more payload with the flag PARTIAL, and one more with the flag WEIGHED. WEIGHTS holds one payload for the group.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from psnode.errors import AlteredFrameError, ForeignFrameError, TruncatedFrameError, WireError

Bytes = npt.NDArray[np.uint8]

MAGIC = b"PSND"
PROTOCOL = 1
_FIELDS = struct.Struct("<4sBBHIIQQQQ")
_CHECKSUM = struct.Struct("<I")
_WEIGHT = struct.Struct("<Q")
_NORM = struct.Struct("<d")
MOST_WEIGHT = 1 << 53  # float64 cannot hold all larger integers exactly
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
_GIL_RELEASE_BYTES = 1 << 16


class Kind(IntEnum):
    """Kind of a frame, which determines the form and the meaning of its body."""

    HELLO = 1  # reserved: the greeting is sent before any frame, without a header
    CONFIG = 2  # master -> worker: the whole configuration
    READY = 3  # worker -> master: the model's tensors, the order of their gradients
    PLAN = 4  # master -> worker: segments, groups, the starting point
    WEIGHTS = 5  # master -> worker: a group's weights, which replace the old ones
    DELTA = 6  # master -> worker: a change of a group's weights, which the worker adds
    GRADIENT = 7  # worker -> master: a group's coded gradient
    REPORT = 8  # worker -> master: loss and timings of a step
    VERSION_COMPLETE = 9  # master -> worker: a version is complete; the groups of the worker's gradient that will not be used
    STATE = 10  # worker -> master: its part of a checkpoint; master -> worker: state at the start
    STOP_REQUEST = 11  # worker -> master: write a checkpoint and stop
    FAILED = 12  # both ways: the sender cannot continue, with the reason
    END = 13  # master -> worker: leave the job
    TRACE = 14  # worker -> master: the worker's timed spans
    SKIP_STEP = 15  # worker -> master and shards: the gradient of this step is left out, with the reason
    PING = 16  # master -> worker: the master is alive
    RESHARD = 17  # master -> worker: the ranks among which the examples are dealt from the next step on
    ASK = 18  # master -> worker: answer once all earlier frames are processed; worker -> master: the answer
    EPOCH = 19  # master -> worker: the number of applied gradients, if it does not follow from the version's number
    CLIP = 20  # master -> worker: by group, the factor with which a version used the worker's gradient
    NORM = 21  # master -> worker in a session: the norm of the mean gradient in a version, before clipping
    EVALUATED = 22  # worker -> master: the result of the program's own evaluation; master -> worker: 1 if no result is better
    PROBE = 23  # both ways: bytes that measure a link; the master's first 8 bytes are the size of the answer
    ORDER = 24  # master -> shard on a worker: a call of one of the shard's methods
    ANSWER = 25  # shard on a worker -> master: the result of an order, if it has one
    EVENT = 26  # shard on a worker -> master: a group is closed, or a push is refused
    PASSED_ON = 27  # master -> shard on a worker: a lost worker's GRADIENT frame, which another shard has received


CODED = frozenset({Kind.WEIGHTS, Kind.DELTA, Kind.GRADIENT})  # kinds of group frames


class Flag(IntFlag):
    """Flags of a frame, which modify the meaning of its kind."""

    NONE = 0
    CHECKPOINT = 1  # VERSION_COMPLETE: contribute to the checkpoint of this version
    STOP = 2  # VERSION_COMPLETE: this version is the last
    SPARE = 4  # VERSION_COMPLETE: the rank is a spare and waits for the next version
    WRITTEN = 8  # STATE: the part was written to the run's directory, or this failed; the frame holds only buffers
    PARTIAL = 16  # GRADIENT: the first payload after those of the segments marks tensors without a gradient in this step
    HOLD = 32  # ASK: no version follows before the answer, and the whole weights follow after it
    WEIGHED = 64  # GRADIENT: the last payload is the gradient's weight in the mean


def _nothing() -> None:
    """Do nothing. This function is the `release` of a frame whose memory does not belong to a pool."""


@dataclass(frozen=True, slots=True)
class Frame:
    """An opened frame: the fields of its header, and its body.

    `body` is a read-only view of the received message; call `release` after its last use.
    """

    kind: Kind
    flags: Flag
    sender: int
    group: int
    step: int
    version: int
    body: Bytes
    release: Callable[[], None] = _nothing


def seal(
    buffer: Bytes, kind: Kind, *, sender: int, job: int, group: int = 0, step: int = 0, version: int = 0, flags: Flag = Flag.NONE
) -> Bytes:
    """Write the header of a frame whose body is already in `buffer[HEADER_BYTES:]`, and return `buffer`."""
    length = buffer.size - HEADER_BYTES
    _FIELDS.pack_into(buffer.data, 0, MAGIC, PROTOCOL, kind, flags, sender, group, step, version, length, job)
    _CHECKSUM.pack_into(buffer.data, _FIELDS.size, checksum(buffer))
    return buffer


def pack(
    kind: Kind,
    body: bytes | Bytes = b"",
    *,
    sender: int,
    job: int,
    group: int = 0,
    step: int = 0,
    version: int = 0,
    flags: Flag = Flag.NONE,
) -> Bytes:
    """Return a new frame with a copy of `body`."""
    buffer = np.empty(HEADER_BYTES + len(body), np.uint8)
    buffer[HEADER_BYTES:] = np.frombuffer(body, np.uint8)
    return seal(buffer, kind, sender=sender, job=job, group=group, step=step, version=version, flags=flags)


def unpack(
    data: Bytes, *, job: int, source: int | None = None, origin: int | None = None, release: Callable[[], None] = _nothing
) -> Frame:
    """Return the frame in a message. `source` is the rank that the transport names as the message's sender.

    `origin`: the rank that sealed the frame, if `source` may have forwarded it. `release`: a function that becomes part of the
    frame.

    Raises TruncatedFrameError, ForeignFrameError, AlteredFrameError or WireError. The order of checks is: length of the
    header, magic and protocol, length of the body, checksum, job, kind, flags, sender.
    """
    if data.size < HEADER_BYTES:
        raise TruncatedFrameError(f"a frame has at least {HEADER_BYTES} bytes, this one has {data.size}", source)
    magic, protocol, kind, flags, sender, group, step, version, length, digest = _FIELDS.unpack_from(data.data, 0)
    if magic != MAGIC:
        raise ForeignFrameError(f"not a psnode frame: starts with {bytes(magic)!r}", source)
    if protocol != PROTOCOL:
        raise ForeignFrameError(f"frame of protocol {protocol}, this is protocol {PROTOCOL}: run one psnode version", source)
    if length != data.size - HEADER_BYTES:
        raise TruncatedFrameError(f"frame states a body of {length} bytes and has {data.size - HEADER_BYTES}", source)
    if _CHECKSUM.unpack_from(data.data, _FIELDS.size)[0] != checksum(data):
        raise AlteredFrameError("frame altered on its way: CRC32C differs", source)
    if digest != job:
        raise ForeignFrameError(f"frame of job {digest:016x}, this is job {job:016x}", source)
    if kind not in _KINDS:
        raise WireError(f"frame of unknown kind {kind}", source)
    if flags & ~_KNOWN_FLAGS:
        raise WireError(f"frame with unknown flags {flags:#06x}", source)
    if source is not None and sender != (source if origin is None else origin):
        raise ForeignFrameError(f"frame claims to come from rank {sender}", source)
    body = data[HEADER_BYTES:]
    body.flags.writeable = False
    return Frame(Kind(kind), Flag(flags), sender, group, step, version, body, release)


def frame_bytes(data: Bytes, source: int | None = None) -> int:
    """Return the size of a frame, as its header at the start of `data` states it.

    Raises TruncatedFrameError if the header is incomplete.
    """
    if data.size < HEADER_BYTES:
        raise TruncatedFrameError(f"a frame has at least {HEADER_BYTES} bytes, and {data.size} are left", source)
    length: int = _FIELDS.unpack_from(data.data, 0)[8]
    return HEADER_BYTES + length


def group_table_bytes(segments: int) -> int:
    """Return the length in bytes of the table of payload lengths at the start of a group frame's body."""
    return 4 * (1 + segments)


def padded(nbytes: int) -> int:
    """Return `nbytes` rounded up to the alignment of payloads within a group frame."""
    return -(-nbytes // 4) * 4


class GroupFrame:
    """An unfinished group frame: payloads are written one after another into `room`, then the frame is sealed.

    `payloads`: the number of payloads. `nbytes`: the most bytes of all payloads together, padding included. `reuse`: memory for
    the frame, which is used if it is large enough.
    """

    def __init__(self, payloads: int, nbytes: int, reuse: Bytes | None = None) -> None:
        need = HEADER_BYTES + group_table_bytes(payloads) + nbytes
        self.buffer = reuse if reuse is not None and reuse.size >= need else np.empty(need, np.uint8)
        self._lengths: list[int] = []
        self._payloads = payloads
        self._end = HEADER_BYTES + group_table_bytes(payloads)

    @property
    def room(self) -> Bytes:
        """The free bytes, which start at a multiple of 4 bytes."""
        return self.buffer[self._end :]

    def take(self, nbytes: int) -> None:
        """Record that a payload of `nbytes` bytes has been written to the start of `room`."""
        self._lengths.append(nbytes)
        end = self._end + nbytes
        self._end += padded(nbytes)
        self.buffer[end : self._end] = 0

    def seal(self, kind: Kind, *, sender: int, job: int, group: int, step: int, version: int, flags: Flag = Flag.NONE) -> Bytes:
        """Return the finished frame, a view of `buffer`."""
        if len(self._lengths) != self._payloads:
            raise ValueError(f"{len(self._lengths)} payloads were written, {self._payloads} were announced")
        table = self.buffer[HEADER_BYTES : HEADER_BYTES + group_table_bytes(self._payloads)].view("<u4")
        table[0] = self._payloads
        table[1:] = self._lengths
        return seal(self.buffer[: self._end], kind, sender=sender, job=job, group=group, step=step, version=version, flags=flags)


def split_group(body: Bytes, segments: int, source: int | None = None) -> list[Bytes]:
    """Return the payloads in the body of a group frame.

    Raises WireError if the number of payloads is not `segments`, or if their lengths do not add up to the length of the body.
    """
    start = group_table_bytes(segments)
    if body.size < start:
        raise WireError(f"group frame of {body.size} bytes has no room for {segments} payload lengths", source)
    table = body[:start].view("<u4")
    if table[0] != segments:
        raise WireError(f"group frame holds {table[0]} payloads, {segments} are expected", source)
    payloads = []
    for nbytes in table[1:].tolist():
        payloads.append(body[start : start + nbytes])
        start += padded(nbytes)
    if start != body.size:
        raise WireError(f"payload lengths add up to {start} bytes, the group frame's body has {body.size}", source)
    return payloads


def pack_groups(groups: Collection[int], count: int) -> bytes:
    """Return the body of a VERSION_COMPLETE frame for `groups`, a subset of the plan's `count` groups.

    Group i is bit i % 8 of byte i // 8. The body of the empty set is empty.
    """
    bits = np.zeros(count if groups else 0, np.uint8)
    bits[list(groups)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def unpack_groups(body: Bytes, count: int, source: int | None = None) -> list[int]:
    """Return the groups in the body of a VERSION_COMPLETE frame in ascending order: the inverse of pack_groups.

    Raises WireError if the body has a wrong length or a set bit beyond the last group.
    """
    bits = np.unpackbits(body, bitorder="little")
    if body.size not in (0, -(-count // 8)) or bits[count:].any():
        raise WireError(f"{body.size} bytes do not mark groups out of {count}", source)
    return [int(index) for index in np.flatnonzero(bits)]


def pack_factors(factors: Mapping[int, float], count: int) -> bytes:
    """Return the body of a CLIP frame: a float32 for each of `count` groups.

    A group's number is its factor in `factors`, or 1 if `factors` has no factor for it.
    """
    values = np.ones(count, "<f4")
    for group, factor in factors.items():
        values[group] = factor
    return values.tobytes()


def unpack_factors(body: Bytes, count: int, source: int | None = None) -> dict[int, np.float32]:
    """Return, by group, the factors below 1 in the body of a CLIP frame: the inverse of pack_factors.

    Raises WireError for a wrong length or a factor outside [0, 1].
    """
    if body.size != 4 * count:
        raise WireError(f"{body.size} bytes are not factors of {count} groups", source)
    values = np.frombuffer(bytes(body), "<f4")
    if not ((values >= 0) & (values <= 1)).all():
        raise WireError(f"the factor of a group is {values.max()}, not from 0 to 1", source)
    return {int(group): np.float32(values[group]) for group in np.flatnonzero(values < 1)}


def pack_norm(norm: float) -> bytes:
    """Return the body of a NORM frame: the norm of a mean gradient as a float64."""
    return _NORM.pack(norm)


def unpack_norm(body: Bytes, source: int | None = None) -> float:
    """Return the norm in a body that `pack_norm` has made. Raises WireError for another length, a negative norm or NaN."""
    if body.size != _NORM.size:
        raise WireError(f"the norm of a gradient takes {_NORM.size} bytes, not {body.size}", source)
    norm = float(_NORM.unpack(body.tobytes())[0])
    if not norm >= 0:
        raise WireError(f"the norm of a gradient is {norm}", source)
    return norm


def pack_weight(weight: int) -> bytes:
    """Return the weight of a gradient in the form of a payload, a uint64. It is the last payload of the gradient's frames."""
    return _WEIGHT.pack(weight)


def unpack_weight(body: Bytes, source: int | None = None) -> int:
    """Return the weight in a payload: the inverse of pack_weight. Raises WireError if it is above 2^53 or not 8 bytes."""
    if body.size != _WEIGHT.size:
        raise WireError(f"{body.size} bytes are not the weight of a gradient", source)
    weight: int = _WEIGHT.unpack(bytes(body))[0]
    if weight > MOST_WEIGHT:
        raise WireError(f"the weight of a gradient is {weight}, more than {MOST_WEIGHT}", source)
    return weight


_KINDS = frozenset(Kind)
_KNOWN_FLAGS = int(Flag.CHECKPOINT | Flag.STOP | Flag.SPARE | Flag.WRITTEN | Flag.PARTIAL | Flag.HOLD | Flag.WEIGHED)


def checksum(buffer: Bytes) -> int:
    """Return the CRC32C of a frame without the four bytes that hold the checksum."""
    header = crc32c(buffer[: _FIELDS.size].data)
    body = buffer[HEADER_BYTES:]
    value: int = crc32c(body.data, header, body.size > _GIL_RELEASE_BYTES)
    return value
