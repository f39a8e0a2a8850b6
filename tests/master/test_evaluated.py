"""Evaluations that a session's workers report: each report gets one answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from psnode.master.checkpoints.pending import PendingCheckpoints
from psnode.master.evaluated import SessionEvaluations
from psnode.protocol.channel import FrameChannel
from psnode.protocol.messages import Evaluated
from psnode.protocol.wire import Flag, Kind
from psnode.transport.loopback import loopback_group


class Written:
    """A double of PendingCheckpoints, with a checkpoint `in_flight` until the test changes that. `begun`: the newest version."""

    in_flight, begun = True, -1

    def begin_evaluated(self, version: int, rank: int, until: float) -> bool:
        if version <= self.begun:
            return False
        self.begun = version
        return True


@pytest.mark.parametrize("later", [2.0, 0.5])
def test_workers_at_different_versions_are_both_answered_when_an_earlier_checkpoint_is_written(
    tmp_path: Path, later: float
) -> None:
    ends = loopback_group(3)
    master, *workers = (FrameChannel(end) for end in ends)
    pending = Written()
    evaluations = SessionEvaluations(master, tmp_path, cast(PendingCheckpoints, pending), lambda step, figures: None)
    for worker, version, loss in ((workers[0], 5, 1.0), (workers[1], 6, later)):
        told = Evaluated(loss, {}, saves=True)
        worker.send(0, Kind.EVALUATED, told.to_bytes(), step=version, version=version)
        evaluations.hear(cast(Any, master.next(1.0)))
    pending.in_flight = False
    evaluations.settle(0.0)
    answers = [cast(Any, worker.next(1.0)) for worker in workers]
    assert [(answer.kind, answer.version, bytes(answer.body)) for answer in answers] == [
        (Kind.EVALUATED, 5, b"\x01"),
        (Kind.EVALUATED, 6, bytes([later < 1.0])),
    ]
    records = [json.loads(line) for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    assert [(record["loss"], record["examples"], record["seconds"]) for record in records] == [
        (1.0, None, None), (later, None, None),
    ]  # fmt: skip
    assert [Flag.CHECKPOINT in answer.flags for answer in answers] == [later > 1.0, later < 1.0]
