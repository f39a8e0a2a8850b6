"""Control messages: invalid ones are refused, both when they are written and when they are read."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from psnode.errors import WireError
from psnode.protocol.messages import Failure, Hello, Ready, Report, Setup, Start, unreportable

READY = Ready([["w", [2, 3]]], [["w", 0.1]], 10, True, host="a", cores=2, arithmetic={"fma": True, "aten": "AVX2"})
MESSAGES = [
    Hello("host", 1, "0.1", "ab12cd34"),
    Hello("host", 1, "0.1", "ab12cd34", 8, "5e9f"),
    Hello("host", 1, "0.1", "ab12cd34", 8, "5e9f", {"fma": True, "aten": "AVX2"}),
    Setup({"lr": 0.1}, {"name": "dense"}, "runs/x", "mark"),
    READY,
    Start({"tensors": []}, 2**64 - 1, 0, 10, 5, None, False, True),
    Report(1.5, 32, {"top1": 3.0}, 0.1, 0.2, 0.3, None, 2**64 - 1, up=2**53 - 1, down=52),
    Failure("bad", 2),
    Failure("worse", 4, "Traceback ...", "nan"),
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


REPORT = Report(1.5, 32, {"top1": 3.0}, 0.1, 0.2, 0.3, None, None)
LIES = [
    (REPORT, {"metrics": {"top1": "3"}}),  # a sum over strings would end the master
    (REPORT, {"metrics": {"top1": None}}),
    (REPORT, {"metrics": {"top1": 10**400}}),
    (REPORT, {"metrics": {"x" * 10_000: 1.0}}),
    (REPORT, {"metrics": {str(i): 1.0 for i in range(100_001)}}),
    (REPORT, {"loss": 10**400}),  # an integer that no float holds
    (REPORT, {"loss": math.nan}),
    (REPORT, {"loss": True}),
    (REPORT, {"samples": -1}),
    (REPORT, {"samples": 10**30}),
    (REPORT, {"wait": "long"}),
    (REPORT, {"replica_hash": 2**64}),
    (REPORT, {"up": "100"}),  # a sum over strings would end the master
    (REPORT, {"up": -1}),
    (REPORT, {"up": 1.5}),
    (REPORT, {"up": math.nan}),
    (REPORT, {"up": 2**53}),
    (REPORT, {"down": None}),
    (REPORT, {"down": 10**400}),
    (READY, {"tensors": [["w", [2, "3"]]]}),
    (READY, {"tensors": [["w"]]}),
    (READY, {"tensors": [["w", [-2]]]}),
    (READY, {"backward": [["w", "0.1"]]}),  # a sum over strings would end a planner
    (READY, {"backward": [["w", math.nan]]}),
    (READY, {"backward": [["w", math.inf]]}),
    (READY, {"backward": [["w", -0.1]]}),
    (READY, {"backward": [["w", True]]}),
    (READY, {"backward": [["w", 10**400]]}),
    (READY, {"backward": [["w", 0.1, 3]]}),
    (READY, {"backward": [["w", 0.1], ["w", 0.1]]}),
    (READY, {"backward": [["v", 0.1]]}),  # there is no such tensor
    (READY, {"backward": []}),
    (READY, {"backward": [3]}),
    (READY, {"backward": {"w": 0.1}}),
    (READY, {"tensors": [["w", [2]], ["v", [2]]], "backward": [["w", 0.2], ["v", 0.1]]}),  # its end precedes its start
    (READY, {"host": 3}),
    (READY, {"host": "x" * 1001}),
    (READY, {"cores": 0}),
    (READY, {"cores": "2"}),
    (READY, {"cores": 1.5}),
    (READY, {"cores": True}),
    (READY, {"cores": 2**64}),
    (READY, {"arithmetic": {}}),
    (READY, {"arithmetic": {"fma": 1, "aten": "AVX2"}}),
    (READY, {"arithmetic": {"fma": True, "aten": None}}),
    (READY, {"arithmetic": {"fma": True, "aten": "x" * 1001}}),
    (READY, {"arithmetic": {"fma": True, "aten": "AVX2", "sve": 2}}),
    (READY, {"arithmetic": [True, "AVX2"]}),
    (READY, {"examples": -1}),
    (Failure("bad", 2), {"exit_code": 0}),  # a failed job would count as a success
    (Failure("bad", 2), {"exit_code": 10**6}),
]


@pytest.mark.parametrize(("message", "lie"), LIES)
def test_fields_that_nobody_could_mean_are_refused(message: Hello, lie: dict[str, object]) -> None:
    data = json.loads(message.to_bytes())
    with pytest.raises(WireError, match="from rank 4"):
        type(message).from_bytes(json.dumps({**data, **lie}).encode(), 4)


def test_what_a_terminal_would_obey_does_not_arrive() -> None:
    body = Failure("\x1b]0;title\x07\x1b[31mred\x9b0m\u202egone\r\n\tback", 1).to_bytes()
    assert Failure.from_bytes(body).message == "?]0;title??[31mred?0m?gone?\n\tback"
    with pytest.raises(WireError):
        Report.from_bytes(replace(REPORT, metrics={"\x1b[2J": 1.0}).to_bytes())


@pytest.mark.parametrize(
    "name", ["f1\u00a0score", "train/loss \u03bb", "\u30e1\u30c8\u30ea\u30c3\u30af\u3000a", "a\u200db", "\ue000"]
)
def test_names_may_hold_whatever_no_terminal_obeys(name: str) -> None:
    report = replace(REPORT, metrics={name: 1.0})
    assert unreportable(8, report.metrics) == ""
    assert Report.from_bytes(report.to_bytes()) == report


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", "a\x7f", "a\x9b0m", "\u2028", "\u202egone", "\ud800", "x" * 1001])
def test_a_name_that_would_be_refused_is_told_before_it_is_sent(name: str) -> None:
    assert ascii(name)[:20] in unreportable(8, {"good": 1.0, name: 1.0})
    with pytest.raises(WireError):
        Report.from_bytes(replace(REPORT, metrics={name: 1.0}).to_bytes())


def test_thousands_of_metrics_arrive() -> None:
    report = replace(REPORT, metrics={f"layer{i}": 1.0 for i in range(20_000)})
    assert unreportable(8, report.metrics) == ""
    assert Report.from_bytes(report.to_bytes()) == report
    assert "100001 metrics" in unreportable(8, {str(i): 1.0 for i in range(100_001)})


def test_metrics_that_are_not_finite_are_a_tasks_own_business() -> None:
    report = replace(REPORT, metrics={"ratio": math.inf}, relative_error=math.inf)
    assert Report.from_bytes(report.to_bytes()) == report


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[1]", b"3"])
def test_garbage_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        Failure.from_bytes(body)


def test_a_greeting_of_another_version_is_understood_as_far_as_its_sender_is_named() -> None:
    for body in (b'{"host": "h", "pid": 7, "version": "0.0"}', b'{"host": "h", "pid": 7, "version": "0.0", "more": [1]}'):
        assert Hello.of_any_version(body, 3) == Hello("h", 7, "0.0", "")
    own = Hello("h", 7, "0.1", "ab12cd34")
    assert Hello.of_any_version(own.to_bytes(), 3) == own
    for body in (
        b"[]",
        b"{",
        b'{"host": "h"}',
        b'{"host": "h\\u001b[2J", "pid": 7, "version": "0.0"}',
        b'{"host": 1, "pid": 7, "version": "0"}',
    ):
        with pytest.raises(WireError, match="from rank 3"):
            Hello.of_any_version(body, 3)
