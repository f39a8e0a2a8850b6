"""Messages between master and shard are read as they were written, and bytes that are no message are refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from psnode.errors import NormError, PayloadError, WireError
from psnode.exchange.shard.median_clipping import Clipped
from psnode.exchange.shard.remote.shard_messages import (
    Order,
    ShardEvent,
    pack_event,
    pack_files,
    unpack_event,
    unpack_files,
)
from psnode.exchange.shard.shard_events import GroupClosed, NotApplied, Refused, Scaled, Squares, Took
from psnode.records.history import AddedGradient

EVENTS: list[ShardEvent] = [
    GroupClosed(3, 17, 1234, (AddedGradient(1, 17, 16), AddedGradient(2, 17, 16))),
    GroupClosed(0, 1, 0, ()),
    GroupClosed(3, 17, 0, (AddedGradient(1, 17, 16),), (Clipped(1, 17, 0.1),)),
    NotApplied(2, (1, 3)),
    Squares({0: 0.1, 7: 3e-30}, True),
    Took(5, {"decode": 0.25, "update": 1e-9}, 1 << 40),
]


def body(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_read_as_it_was_written(event: ShardEvent) -> None:
    assert unpack_event(body(pack_event(event)), 5) == event


@pytest.mark.parametrize("kind", [Refused, Scaled])
def test_an_error_about_a_norm_keeps_its_numbers(kind: Any) -> None:
    found = unpack_event(body(pack_event(kind(4, 2, NormError(2, 9, 4, 1e30, 1e20)))), 1)
    assert isinstance(found, kind)
    assert (found.group, found.sender) == (4, 2)
    assert isinstance(found.error, NormError)
    assert (found.error.rank, found.error.step, found.error.norm, found.error.bound) == (2, 9, 1e30, 1e20)


def test_other_errors_keep_their_text_and_rank() -> None:
    refused = unpack_event(body(pack_event(Refused(4, 2, PayloadError("not a payload")))), 1)
    assert isinstance(refused, Refused)
    assert str(refused.error) == "not a payload"
    unreadable = unpack_event(body(pack_event(WireError("altered", 3))), 1)
    assert isinstance(unreadable, WireError)
    assert unreadable.source == 3
    assert str(unreadable) == "altered (from rank 3)"


def test_an_order_is_read_as_it_was_written() -> None:
    order = Order("open", {"version": 3, "lr": 0.1})
    assert Order.from_bytes(body(order.to_bytes()), 0) == order


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(["closed", "refused", "scaled", "not applied", "unreadable", "squares", "took", "?"]),
    st.lists(values, max_size=5),
)
def test_other_json_is_refused_or_an_event(kind: str, rest: list[Any]) -> None:
    with contextlib.suppress(WireError):
        event = unpack_event(body(json.dumps([kind, *rest]).encode()), 6)
        assert repr(event) == repr(unpack_event(body(pack_event(event)), 6))


@given(st.binary(max_size=40))
def test_any_other_bytes_are_refused(content: bytes) -> None:
    for read in (unpack_event, unpack_files, Order.from_bytes):
        with pytest.raises(WireError):
            read(body(content), 6)


def test_files_keep_their_names_types_and_bits() -> None:
    files = {
        "model.safetensors": {"a/b.weight": torch.tensor([1.5, float("nan")]), "c": torch.zeros(0)},
        "state/optimizer.safetensors": {"step/a/b.weight": torch.tensor([3], dtype=torch.int64)},
    }
    found, facts = unpack_files(body(pack_files(files, {"step": 4, "gradient_norm": 0.1})), 2)
    assert facts == {"step": 4, "gradient_norm": 0.1}
    assert found.keys() == files.keys()
    for file, tensors in files.items():
        assert found[file].keys() == tensors.keys()
        assert all(torch.equal(value.nan_to_num(7), found[file][name].nan_to_num(7)) for name, value in tensors.items())
