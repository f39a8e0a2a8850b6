"""Frames: exact bytes, and only whole frames of this job are accepted."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnode.errors import AlteredFrameError, ForeignFrameError, TruncatedFrameError, WireError
from psnode.protocol import wire
from psnode.protocol.wire import Flag, Kind

JOB = 0x1122334455667788


def crc32c_bitwise(data: bytes) -> int:
    """Return the CRC32C by its definition: reflected polynomial 0x82F63B78, initial and final value all ones."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def a_frame(body: bytes = b"body") -> np.ndarray:
    return wire.pack(Kind.GRADIENT, body, sender=3, job=JOB, group=5, step=7, version=6, flags=Flag.STOP)


def resealed(data: bytearray) -> np.ndarray:
    """Return `data` with a corrected checksum, so that only the change is wrong."""
    struct.pack_into("<I", data, 48, crc32c_bitwise(bytes(data[:48]) + bytes(data[52:])))
    return np.frombuffer(bytes(data), np.uint8)


def test_a_frame_is_these_bytes() -> None:
    fields = (
        b"PSND"
        + bytes([1, 7])
        + (2).to_bytes(2, "little")
        + (3).to_bytes(4, "little")
        + (5).to_bytes(4, "little")
        + (7).to_bytes(8, "little")
        + (6).to_bytes(8, "little")
        + (4).to_bytes(8, "little")
        + JOB.to_bytes(8, "little")
    )
    assert a_frame().tobytes() == fields + crc32c_bitwise(fields + b"body").to_bytes(4, "little") + b"body"


def test_crc32c_of_the_standard_check_string() -> None:
    assert crc32c_bitwise(b"123456789") == 0xE3069283


@given(
    kind=st.sampled_from(Kind),
    body=st.binary(max_size=300),
    sender=st.integers(0, 2**32 - 1),
    group=st.integers(0, 2**32 - 1),
    step=st.integers(0, 2**64 - 1),
    version=st.integers(0, 2**64 - 1),
    job=st.integers(0, 2**64 - 1),
)
def test_what_is_packed_comes_out(kind: Kind, body: bytes, sender: int, group: int, step: int, version: int, job: int) -> None:
    data = wire.pack(kind, body, sender=sender, job=job, group=group, step=step, version=version)
    frame = wire.unpack(data, job=job, source=sender)
    assert (frame.kind, frame.sender, frame.group, frame.step, frame.version) == (kind, sender, group, step, version)
    assert frame.body.tobytes() == body
    assert frame.flags is Flag.NONE


def test_a_body_cannot_be_written_through_its_frame() -> None:
    frame = wire.unpack(a_frame(), job=JOB)
    with pytest.raises(ValueError, match="read-only"):
        frame.body[0] = 1


@given(st.integers(0, 55), st.integers(1, 255))
def test_any_changed_byte_is_noticed(position: int, change: int) -> None:
    data = a_frame().copy()
    data[position] ^= change
    with pytest.raises((AlteredFrameError, ForeignFrameError, TruncatedFrameError)):
        wire.unpack(data, job=JOB, source=3)


@pytest.mark.parametrize("size", [0, 1, 51, 52, 55])
def test_a_cut_frame_is_truncated(size: int) -> None:
    with pytest.raises(TruncatedFrameError):
        wire.unpack(a_frame()[:size], job=JOB)


def test_bytes_after_the_body_are_refused() -> None:
    with pytest.raises(TruncatedFrameError, match="body of 4 bytes and has 5"):
        wire.unpack(np.append(a_frame(), np.uint8(0)), job=JOB)


def test_another_job_is_foreign() -> None:
    with pytest.raises(ForeignFrameError, match="this is job 0000000000000005"):
        wire.unpack(a_frame(), job=5)


def test_a_sender_that_is_not_the_source_is_foreign_and_the_source_is_named() -> None:
    with pytest.raises(ForeignFrameError, match=r"claims to come from rank 3 \(from rank 4\)") as caught:
        wire.unpack(a_frame(), job=JOB, source=4)
    assert caught.value.source == 4


@pytest.mark.parametrize(
    ("offset", "value", "error"),
    [(0, b"X", ForeignFrameError), (4, b"\x02", ForeignFrameError), (5, b"\xff", WireError), (6, b"\x80", WireError)],
)
def test_a_resealed_frame_of_another_kind_protocol_or_flag_is_refused(offset: int, value: bytes, error: type[WireError]) -> None:
    data = bytearray(a_frame().tobytes())
    data[offset : offset + 1] = value
    with pytest.raises(error):
        wire.unpack(resealed(data), job=JOB)


@pytest.mark.parametrize("length", [0, 3, 5, 2**40, 2**64 - 1])
def test_a_resealed_frame_with_another_length_is_truncated(length: int) -> None:
    data = bytearray(a_frame().tobytes())
    struct.pack_into("<Q", data, 32, length)
    with pytest.raises(TruncatedFrameError):
        wire.unpack(resealed(data), job=JOB)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6))
def test_the_payloads_of_a_group_come_apart_again(payloads: list[bytes]) -> None:
    body = group_body(payloads)
    assert [part.tobytes() for part in wire.split_group(body, len(payloads))] == payloads


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.integers(0, 200), st.integers(0, 2**32 - 1))
def test_a_group_whose_lengths_do_not_add_up_is_refused_or_in_bounds(payloads: list[bytes], position: int, value: int) -> None:
    body = group_body(payloads)
    words = body.view("<u4")
    words[position % (1 + len(payloads))] = value
    try:
        parts = wire.split_group(body, len(payloads))
    except WireError:
        return
    assert sum(part.size for part in parts) <= body.size


def group_body(payloads: list[bytes]) -> np.ndarray:
    head = struct.pack(f"<{1 + len(payloads)}I", len(payloads), *map(len, payloads))
    padded = b"".join(payload + bytes(-len(payload) % 4) for payload in payloads)
    return np.frombuffer(head + padded, np.uint8).copy()


def test_the_norm_of_a_gradient_is_a_float64_and_nothing_else() -> None:
    body = np.frombuffer(struct.pack("<d", 2.5), np.uint8)
    assert wire.pack_norm(2.5) == body.tobytes()
    assert wire.unpack_norm(body) == 2.5
    for wrong in (b"", b"\0" * 9, struct.pack("<d", -1.0), struct.pack("<d", float("nan"))):
        with pytest.raises(WireError, match="the norm of a gradient"):
            wire.unpack_norm(np.frombuffer(wrong, np.uint8), 0)
