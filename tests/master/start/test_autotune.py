"""The search for a group size, on costs whose minimum is known."""

from __future__ import annotations

from typing import Any, cast

import pytest
from torch import nn

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.master.start.autotune import FEWEST_STEPS, group_bytes_for, search
from psnode.protocol.channel import FrameChannel
from psnode.protocol.messages import Ready, Start
from psnode.protocol.wire import Kind

MIB = 1 << 20
WHOLE = 44 * MIB
SIZES = [MIB // 4, MIB, 4 * MIB, 16 * MIB, 64 * MIB]  # the last gives one group


def cost(size: int, best: int) -> float:
    """Return a cost with a fixed part per group and a part for the wait for the last group, minimal at `best` bytes."""
    return 1e-3 * (size / best + best / size)


@pytest.mark.parametrize("best", SIZES)
def test_the_least_of_all_sizes_is_found(best: int) -> None:
    assert search(lambda size: cost(size, best), WHOLE) == best == min(SIZES, key=lambda size: cost(size, best))


def test_less_than_a_twentieth_is_no_gain() -> None:
    assert search(lambda size: 1.0 if size == 16 * MIB else 0.96, WHOLE) == 16 * MIB
    seconds = dict(zip(SIZES, [0.5, 0.90, 0.94, 1.0, 0.96], strict=True))
    assert search(seconds.__getitem__, WHOLE) == 4 * MIB


def test_a_slow_step_is_tried_once() -> None:
    tried: list[int] = []
    assert search(lambda size: tried.append(size) or 1.5, WHOLE) == 16 * MIB  # type: ignore[func-returns-value]
    assert tried == [16 * MIB]


@pytest.mark.parametrize(
    ("rows", "steps", "changed", "expected"),
    [
        (2000, FEWEST_STEPS - 1, {}, 16 * MIB),
        (1000, FEWEST_STEPS, {}, 16 * MIB),  # 4,000,000 bytes: one group
        (2000, FEWEST_STEPS, {"local": 2}, 16 * MIB),
        (2000, FEWEST_STEPS, {"group_bytes": 5 * MIB}, 5 * MIB),
        (2000, FEWEST_STEPS, {"group_by": "layer"}, 0),
    ],
)
def test_what_needs_no_rehearsal_is_decided_without_the_workers(
    rows: int, steps: int, changed: dict[str, Any], expected: int
) -> None:
    config = Config(scheme="dense", **changed)
    ready = {1: Ready([["w", [rows, 1000]]], None, 100, False)}
    nobody = cast(FrameChannel, None)
    assert (
        group_bytes_for(nobody, config, resolve(config), nn.Module(), ready, steps=steps, epoch=10, lr=0.1, tell=print)
        == expected
    )


class HeardError(Exception):
    """Raised when the master has announced the rehearsal."""


class OneMessage:
    """A link that stores the first message and then raises an error."""

    job = 0
    body = b""

    def send(self, ranks: object, kind: Kind, body: bytes) -> None:
        assert kind is Kind.PLAN
        self.body = body
        raise HeardError


@pytest.mark.parametrize(("late", "waits"), [([], ""), (["w"], ""), ([], "the model is compiled")])
def test_a_rehearsal_runs_its_passes_as_the_run_will(late: list[str], waits: str) -> None:
    config, link = Config(scheme="dense", lr=0.1), OneMessage()
    seen_first = Ready([["w", [2000, 1000]]], [["w", 0.1]], 100, False, late=late, waits=waits)
    ready = {2: Ready([["w", [2000, 1000]]], None, 100, False), 1: seen_first}
    with pytest.raises(HeardError):
        group_bytes_for(
            cast(FrameChannel, link), config, resolve(config), nn.Module(), ready,
            steps=FEWEST_STEPS, epoch=10, lr=0.1, tell=print,
        )  # fmt: skip
    start = Start.from_bytes(link.body)
    assert (start.rehearsal, start.late, start.waits) == (True, late, bool(waits))
