"""Messages with which the ranks of a resumed run start."""

from __future__ import annotations

import io
import signal
from pathlib import Path

import pytest
import torch

from psnode.config import Config
from psnode.config.job_folder import VARIABLE
from psnode.config.resolve import resolve
from psnode.errors import StoppedError
from psnode.jobs import job_end
from psnode.master.example_dealing import Epochs
from psnode.master.start.startup import gather_ready, send_start
from psnode.plans.groups import Tensor
from psnode.plans.rule import make_plan
from psnode.protocol.channel import FrameChannel
from psnode.protocol.messages import Ready, Start
from psnode.protocol.wire import Kind
from psnode.records import checkpoint, staging, tensorfile
from psnode.records.directory import ResumePoint, RunDirectory
from psnode.records.generations import Generation
from psnode.transport.loopback import LoopbackTransport, loopback_group

PLAN = make_plan([Tensor("weight", (4,))], "identity", group_by="model", min_compress_bytes=0)


def resumed(folder: Path, wrote: int) -> RunDirectory:
    """Return a run in which rank 1 was lost and rank 3, a spare, took its place. `wrote`: the number of workers of its
    checkpoint.
    """
    draft = staging.StagedCheckpoint(folder, 5)
    draft.add_tensors(checkpoint.MODEL, {"weight": torch.zeros(4), "mean": torch.full((2,), 7.0)})
    for rank in (2, 3):
        part = {"feedback/residual/weight": torch.full((4,), float(rank)), "buffer/mean": torch.full((2,), float(rank))}
        draft.add_tensors(checkpoint.worker_file(rank), part)
    found = checkpoint.Checkpoint.open(draft.publish({"workers": wrote}))
    config = Config(train_dir=folder)
    return RunDirectory(folder, "mark", config, resolve(config), ResumePoint(found, PLAN, (Generation(0, wrote),)), io.BytesIO())


def told(end: LoopbackTransport) -> dict[str, torch.Tensor] | None:
    """Return the state that a rank was sent after its PLAN, or None."""
    link = FrameChannel(end)
    start = Start.from_bytes(link.expect(Kind.PLAN, 5).body, 0)
    assert start.step == 5
    link.job = start.job
    return tensorfile.parse(bytes(link.expect(Kind.STATE, 5).body), "state") if start.state_follows else None


@pytest.mark.parametrize(("wrote", "second"), [(2, None), (3, {"feedback/residual/weight": 2.5, "buffer/mean": 7.0})])
def test_a_spare_begins_without_memories_whatever_place_it_had_before(
    tmp_path: Path, wrote: int, second: dict[str, float] | None
) -> None:
    """Check that a spare gets no memories. Worker 2 reads its own part, or gets the mean of all parts if another number of
    workers wrote them.
    """
    ends = loopback_group(4)
    ready = {rank: Ready([["weight", [4]]], None, 100, True) for rank in (1, 2, 3)}
    send_start(FrameChannel(ends[0]), resumed(tmp_path, wrote), PLAN, ready, Epochs(10, 0, 0), workers=2, job=9, last_step=20)
    found = [told(end) for end in ends[1:]]
    assert found[1] is None if second is None else {name: value[0].item() for name, value in (found[1] or {}).items()} == second
    assert found[2] is not None
    assert {name: value.tolist() for name, value in found[2].items()} == {"buffer/mean": [7.0, 7.0]}


@pytest.mark.parametrize(("noted", "told"), [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM"), (None, "SIGUSR1")])
def test_a_request_by_a_worker_on_another_host_names_the_signal_that_the_launcher_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: signal.Signals | None, told: str
) -> None:
    """Check that the error names the launcher's signal: the launcher, on the master's host, notes it and has mpirun send
    USR1 to all ranks.
    """
    monkeypatch.setenv(VARIABLE, str(tmp_path / "job-end"))
    if noted is not None:
        job_end.ask(tmp_path / "job-end", noted)
    ends = loopback_group(2)
    FrameChannel(ends[1]).send(0, Kind.STOP_REQUEST, b"SIGUSR1")
    with pytest.raises(StoppedError, match=f"stopped by {told} ") as caught:
        gather_ready(FrameChannel(ends[0]), resumed(tmp_path, 2), [1], 5.0)
    assert caught.value.exit_code == (130 if noted == signal.SIGINT else 75)
