"""Control messages: strict both ways."""

from __future__ import annotations

import json

import pytest

from psnode.errors import WireError
from psnode.messages import Failure, Hello, Ready, Report, Setup, Start

MESSAGES = [
    Hello("host", 1, "0.1"),
    Setup({"lr": 0.1}, {"name": "dense"}, "runs/x", "mark"),
    Ready([["w", [2, 3]]], ["w"], 10, True),
    Start({"tensors": []}, 2**64 - 1, 0, 10, 5, None, False, True),
    Report(1.5, 32, {"top1": 3.0}, 0.1, 0.2, 0.3, None, 2**64 - 1),
    Failure("bad", 2),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_survive_the_wire(message: Hello) -> None:
    assert type(message).from_bytes(message.to_bytes()) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_missing_unknown_or_mistyped_field_is_refused(message: Hello) -> None:
    data = json.loads(message.to_bytes())
    first = next(iter(data))
    for bad in (
        {key: value for key, value in data.items() if key != first},
        {**data, "extra": 1},
        {**data, first: {"no": "such"} if not isinstance(data[first], dict) else 3},
    ):
        with pytest.raises(WireError, match="from rank 4"):
            type(message).from_bytes(json.dumps(bad).encode(), 4)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[1]", b"3"])
def test_garbage_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        Failure.from_bytes(body)
