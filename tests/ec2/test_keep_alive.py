"""A job that is kept alive: its limits, its ends, and a state that survives the tool's death. The cluster is a stand-in."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnode_ec2 import cluster as module
from psnode_ec2 import kept_job_record as record
from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import cluster_of
from psnode_ec2.ec2_errors import CapacityError, CapError, Ec2Error, GivenUpError, SettingsError
from psnode_ec2.keep_alive import keep_alive
from psnode_ec2.kept_job_record import Charge
from psnode_ec2.reviving import Revival
from psnode_ec2.settings import Settings, load

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


class Cluster:
    """A stand-in whose jobs end with `codes` in turn, and whose launches raise `faults`."""

    def __init__(
        self, codes: list[int | None], faults: list[Ec2Error | None] | None = None, steps: list[str] | None = None
    ) -> None:
        self.codes, self.faults = codes, faults or []
        self.steps = steps or [f"step-{n:08d}" for n in range(1, 99)]
        self.stopped, self.hours, self.moved, self.started, self.left = "", list[int](), list[bool](), 0, 0

    def follow(self, job: str) -> int | None:
        return self.codes.pop(0)

    def was_stopped(self) -> str:
        return self.stopped

    def newest(self) -> str:
        return self.steps.pop(0)

    def leave(self, charge: Charge, *, everything: bool) -> None:
        self.left += 1
        self.moved.append(everything)

    def complete(self, charge: Charge, max_hours: int) -> None:
        self.hours.append(max_hours)
        if self.faults and (fault := self.faults.pop(0)):
            raise fault

    def start(self, charge: Charge) -> str:
        self.started += 1
        return f"jobs/{self.started}"


class Desk:
    """A user's settings with their own state directory, and a clock that advances only during pauses."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.settings = Settings(name="alive", state_dir=folder, **more)
        self.waits = list[float]()
        self.cloud = Cloud(self.settings, clients={"ec2": None}, sleep=self.waits.append)

    def begun(self, restarts: int = 5) -> Charge:
        made = Charge(["train", "--train-dir", "r"], False, restarts, NOON.isoformat())
        record.write(self.settings, made)
        return made

    def run(self, cluster: Cluster, charge: Charge | None = None) -> int:
        now = lambda: NOON + datetime.timedelta(seconds=sum(self.waits))  # noqa: E731
        return keep_alive(charge or self.begun(), self.settings, self.cloud, cluster, now)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_job_that_lost_its_nodes_goes_on_until_it_is_done(desk: Desk) -> None:
    cluster = Cluster([75, None, 3, 0])
    assert desk.run(cluster) == 0
    assert (cluster.started, cluster.left, cluster.hours) == (4, 3, [24, 24, 24])
    assert record.read(desk.settings) is None


@pytest.mark.parametrize("code", [0, 2, 4, 5, 130])
def test_an_end_that_another_start_would_reach_again_is_the_end(desk: Desk, code: int) -> None:
    cluster = Cluster([code])
    assert desk.run(cluster) == code
    assert cluster.left == 0


def test_what_somebody_stopped_is_not_started_again(desk: Desk) -> None:
    for gone in (False, True):
        cluster = Cluster([None if gone else 75])
        cluster.stopped = "the job was asked to end"
        assert desk.run(cluster) == 75
        assert (cluster.started, cluster.hours) == (1, [])


def test_a_shutdown_from_another_terminal_ends_the_intention_too(desk: Desk) -> None:
    cluster = Cluster([])

    def follow(job: str) -> int:
        record.forget(desk.settings)  # as shutdown does
        return 75

    cluster.follow = follow  # type: ignore[method-assign]
    assert desk.run(cluster) == 75
    assert cluster.hours == []


def test_restarts_count_over_deaths_of_the_tool_and_failed_ones_too(desk: Desk) -> None:
    cluster = Cluster([75, 75], [CapacityError("no room"), None, CapacityError("no room"), KeyboardInterrupt()])  # type: ignore[list-item]
    with pytest.raises(KeyboardInterrupt):
        desk.run(cluster)
    left = record.read(desk.settings)
    assert left is not None
    assert (left.used, left.job) == (4, "")
    again = Cluster([75])
    with pytest.raises(GivenUpError, match="all 5 restarts are used: status shows what runs, and costs") as caught:
        desk.run(again, left)
    assert (again.started, caught.value.exit_code) == (1, 3)
    # a later attempt with a higher limit continues the count
    kept = record.read(desk.settings)
    assert kept is not None
    kept.restarts = 6
    assert desk.run(Cluster([0]), kept) == 0


def test_a_job_that_still_runs_is_followed_and_not_started(desk: Desk) -> None:
    charge = desk.begun()
    charge.job = "jobs/7"
    cluster = Cluster([0])
    assert desk.run(cluster, charge) == 0
    assert (cluster.started, cluster.hours) == (0, [])


def test_pauses_between_failed_attempts_grow_and_have_a_limit(desk: Desk) -> None:
    with pytest.raises(GivenUpError):
        desk.run(Cluster([None], [CapacityError("no room")] * 12), desk.begun(12))
    assert len(desk.waits) == 12
    assert all(min(600, 15 * 2**k) / 2 <= wait <= min(600, 15 * 2**k) for k, wait in enumerate(desk.waits))


def test_later_nodes_live_no_longer_than_the_first_would_have(tmp_path: Path) -> None:
    desk = Desk(tmp_path, max_hours=2)
    cluster = Cluster([75] * 99, [CapacityError("no room")] * 99)
    with pytest.raises(GivenUpError, match="max_hours = 2 since the job began are over"):
        desk.run(cluster, desk.begun(99))
    assert cluster.hours[0] == 2
    assert cluster.hours[-1] == 1
    assert sorted(cluster.hours, reverse=True) == cluster.hours
    assert sum(desk.waits) - desk.waits[-1] < 2 * 3600 <= sum(desk.waits)


def test_three_restarts_without_a_newer_checkpoint_are_enough(desk: Desk) -> None:
    cluster = Cluster([75] * 9, steps=["step-1", "step-2", "step-2", "step-2", "step-2"])
    with pytest.raises(GivenUpError, match="3 restarts brought nothing newer than step-2"):
        desk.run(cluster, desk.begun(9))
    assert cluster.started == 5


def test_where_there_is_no_room_beside_the_nodes_that_are_left_all_of_it_moves(desk: Desk) -> None:
    cluster = Cluster([75, 0], [CapacityError("no room"), Ec2Error("the network"), None])
    assert desk.run(cluster) == 0
    assert cluster.moved == [False, True, False]


def test_a_cap_ends_it_at_once(desk: Desk) -> None:
    cluster = Cluster([75], [CapError("over max_hourly_price")])
    with pytest.raises(CapError):
        desk.run(cluster)
    assert len(cluster.hours) == 1


def test_a_start_that_is_refused_leaves_no_intention(desk: Desk) -> None:
    cluster = Cluster([])

    def start(charge: Charge) -> str:
        raise SettingsError("run needs a complete cluster")

    cluster.start = start  # type: ignore[method-assign]
    with pytest.raises(SettingsError):
        desk.run(cluster)
    assert record.read(desk.settings) is None


def test_one_process_at_a_time_holds_it_and_death_lets_it_go(desk: Desk, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\nfrom psnode_ec2 import kept_job_record as charge\nfrom psnode_ec2.settings import Settings\n"
        "with charge.held(Settings(name='alive', state_dir=pathlib.Path(sys.argv[1]))):\n"
        "    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    other = subprocess.Popen([sys.executable, "-c", program, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(SettingsError, match="another run --keep-alive of this cluster"), record.held(desk.settings):
            pass
    finally:
        other.kill()
        other.communicate()
    with record.held(desk.settings):
        pass


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--keep-alive"], "there is no job to go on with: run --keep-alive -- train"),
        (["--keep-alive", "--", "evaluate"], "resumes training by its checkpoints, and evaluate is something else"),
        (["--keep-alive", "--", "train"], "the command has no --train-dir"),
        (["--keep-alive", "--detach", "--", "train", "--train-dir", "r"], "have to stay and look: leave --detach out"),
        (["--restarts", "3", "--", "train"], "--restarts is for --keep-alive"),
    ],
)
def test_what_cannot_be_kept_alive_is_refused_with_what_helps(
    ec2: Callable[..., Any], config: Path, words: list[str], message: str
) -> None:
    done = ec2("run", *words)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert message in done.err
    assert not (config.parent / "state" / "keep-alive.json").exists()


def test_another_job_than_the_one_that_is_kept_alive_is_refused(ec2: Callable[..., Any], config: Path) -> None:
    state = config.parent / "state"
    state.mkdir()
    (state / "keep-alive.json").write_text("{")
    done = ec2("run", "--keep-alive", "--yes", "--", "train", "--train-dir", "b")
    assert (done.code, "remove it, and run --keep-alive" in done.err) == (2, True)
    record.write(Settings(name="x", state_dir=state), Charge(["train", "--train-dir", "a"], False, 5, NOON.isoformat()))
    done = ec2("run", "--keep-alive", "--yes", "--", "train", "--train-dir", "b")
    assert done.code == 2
    assert "another job is kept alive here (train --train-dir a)" in done.err


def test_a_dry_run_says_what_is_asked_and_keeps_nothing(ec2: Callable[..., Any], config: Path) -> None:
    assert ec2("launch", "--yes").code == 0
    done = ec2("run", "--dry-run", "--keep-alive", "--restarts", 2, "--", "train", "--train-dir", "r")
    assert done.code == 0, done.err
    assert "restart it up to 2 times, with nodes for up to 10 USD an hour, for 24 h from now" in done.err
    assert "would run start_job.sh on master" in done.out
    assert not (config.parent / "state" / "keep-alive.json").exists()


def test_who_stops_the_job_or_ends_nodes_ends_the_intention_and_ec2_does_not(
    nodes: Any, api: Any, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(config, {})
    cluster = cluster_of(Cloud(settings), settings)
    work = Revival(cluster, settings, ["train", "--train-dir", "r"], synced=False, adopts=False)
    assert work.was_stopped() == ""
    mark = nodes.home("master") / "psnode/jobs/last/asked"
    mark.parent.mkdir(parents=True)
    mark.touch()
    assert work.was_stopped() == "the job was asked to end"
    mark.unlink()
    lost = next(node.id for node in cluster.nodes() if node.name == "worker-0")
    api.terminate_instances(InstanceIds=[lost])
    assert work.was_stopped() == f"somebody has ended {lost} (Client.UserInitiatedShutdown)"
    real = module.node_of
    for reason in ("Server.SpotInstanceTermination", "Client.InstanceInitiatedShutdown", ""):
        monkeypatch.setattr(
            module, "node_of", lambda each, workers, reason=reason: real({**each, "StateReason": {"Code": reason}}, workers)
        )
        assert work.was_stopped() == ""
    # a file that it leaves itself is not lost
    monkeypatch.setattr(module, "node_of", real)
    work = Revival(cluster, settings, ["train", "--train-dir", "r"], synced=False, adopts=False)
    charge = Charge(["train", "--train-dir", "r"], False, 5, NOON.isoformat())
    work.leave(charge, everything=False)
    assert len(cluster.nodes()) == 2
    log = nodes.home("worker-1") / "psnode/interruption.log"
    log.parent.mkdir(parents=True)
    log.write_text('2026-01-01T00:00:00+00:00 spot/instance-action {"action": "terminate"}\n')
    monkeypatch.setattr(module, "node_of", lambda each, workers: real({**each, "InstanceLifecycle": "spot"}, workers))
    work.leave(charge, everything=False)
    assert [node.role for node in cluster.nodes()] == ["master"]
    assert work.was_stopped() == ""
    work.leave(charge, everything=True)
    assert (cluster.nodes(), work.follow("jobs/1")) == ([], None)
