"""Launches that fail at any call, and two concurrent launches in any order: started nodes are reported, and nodes of others
stay untouched.
"""

from __future__ import annotations

import datetime
import random
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from psnode_ec2 import ec2_errors
from psnode_ec2 import kept_job_record as record
from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import Cluster
from psnode_ec2.keep_alive import keep_alive
from psnode_ec2.kept_job_record import Charge
from psnode_ec2.launching import launch
from psnode_ec2.settings import Settings
from psnode_ec2.shutdown import end_nodes, shutdown

pytest.importorskip("botocore")

PRICES = {"m5.large": 0.096, "c5.large": 0.085, "gp3": 0.08}
STRANGERS = [{"psnode:cluster": "demo", "psnode:owner": "grace"}, {"psnode:cluster": "demo2", "psnode:owner": "ada"}, {}]


@pytest.fixture(scope="module")
def world_module(ec2_module: Any) -> Any:
    return ec2_module("world")


@pytest.fixture(autouse=True)
def drawn_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the ids of launches, too, from the test's seed."""
    monkeypatch.setattr(
        "psnode_ec2.launching.secrets.token_hex", lambda length: f"{random.getrandbits(8 * length):0{2 * length}x}"
    )


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    paths = [tmp_path_factory.mktemp("two") / name for name in ("one", "other")]
    for path in paths:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return paths


class Desk(NamedTuple):
    """The cluster and settings of one terminal."""

    cluster: Cluster
    settings: Settings

    def launch(self) -> Any:
        return launch(self.cluster, self.settings, lambda text: None)


def desk(module: Any, world: Any, who: str, key: Path, **more: Any) -> Desk:
    values = {"name": "demo", "path_to_keyfile": key, "ssh_from": "203.0.113.7/32", "prices": PRICES, "capacity_attempts": 2}
    types = {"master_type": "m5.large", "worker_type": "m5.large", "availability_zone": "us-west-2b"}
    settings = Settings(**{**values, **types, **more})
    turns = world.turns
    cloud = Cloud(settings, clients={"ec2": module.Client(world, who)}, sleep=turns.pause, clock=lambda: turns.now)
    return Desk(Cluster(cloud, "demo", "ada"), settings)


def new_world(module: Any, seed: int) -> Any:
    """Return a world with three nodes of other owners."""
    random.seed(seed)  # seeds the pauses
    world = module.World(module.Turns(random.Random(seed)))
    for number, tags in enumerate(STRANGERS):
        world.instances[f"i-stranger{number}"] = {
            "id": f"i-stranger{number}", "number": 200 + number, "type": "m5.large", "subnet": "subnet-b", "started": 0.0,
            "shown": 0.0, "key": "", "tags": [{"Key": k, "Value": v} for k, v in tags.items()], "by": "", "uses": set(),
        }  # fmt: skip
    return world


def own(world: Any) -> list[dict[str, Any]]:
    """Return the running instances that were started here."""
    return [each for each in world.live() if each["by"]]


def roles(world: Any) -> Counter[str]:
    return Counter(tag["Value"] for each in own(world) for tag in each["tags"] if tag["Key"] == "psnode:role")


def cleared(module: Any, world: Any, key: Path) -> None:
    """Shut down once EC2 shows everything, and check that only resources of other users are left."""
    world.faults = lambda operation, parameters: None
    world.turns.now += 60
    world.calls.clear()
    shutdown(desk(module, world, "shutdown", key).cluster)
    assert own(world) == []
    assert not any(world.resources.values())
    assert sum(not each["by"] for each in world.live()) == len(STRANGERS)


def count_calls(module: Any, keys: list[Path]) -> int:
    world = new_world(module, 0)
    desk(module, world, "one", keys[0]).launch()
    return len(world.calls)


PASSING = ["throttled", "internal", "cut before", "cut after"]


def fault(module: Any, kind: str, operation: str) -> tuple[bool, Exception]:
    """Return (whether the call takes effect nevertheless, the error that it then raises)."""
    codes = {"throttled": "RequestLimitExceeded", "internal": "InternalError"}
    if kind in codes:
        return False, module.refusal(operation, codes[kind])
    return (kind == "cut after", module.cut()) if kind.startswith("cut") else (False, module.refusal(operation, kind))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", PASSING)
def test_any_call_may_fail_once_and_twice(world_module: Any, keys: list[Path], kind: str, times: int) -> None:
    for number in range(count_calls(world_module, keys)):
        world = new_world(world_module, 0)

        def faults(operation: str, parameters: Any, world: Any = world, number: int = number) -> Any:
            return fault(world_module, kind, operation) if number < len(world.calls) <= number + times else None

        world.faults = faults
        assert len(desk(world_module, world, "one", keys[0]).launch()) == 3
        assert roles(world) == {"master": 1, "worker": 2}
        assert world.ended_by == {}
        cleared(world_module, world, keys[0])


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", ["UnauthorizedOperation", "VcpuLimitExceeded", "SomethingNew"])
def test_a_refusal_at_any_call_leaves_nothing_that_is_not_told(
    world_module: Any, keys: list[Path], kind: str, times: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refuse each call of a launch in turn, and check that no node stays without a report. With `times` = 2, the
    following call is refused too; it may be part of the cleanup.
    """
    for number in range(count_calls(world_module, keys)):
        world = new_world(world_module, 0)

        def faults(operation: str, parameters: Any, world: Any = world, number: int = number) -> Any:
            return fault(world_module, kind, operation) if number < len(world.calls) <= number + times else None

        world.faults = faults
        capsys.readouterr()
        result = attempt(desk(world_module, world, "one", keys[0]))
        assert isinstance(result, ec2_errors.Ec2Error)
        told = "stays, and costs" in str(result) or "the other nodes stay, and cost" in capsys.readouterr().err
        assert told or own(world) == []
        assert roles(world)["master"] <= 1
        cleared(world_module, world, keys[0])


def attempt(one: Desk) -> Any:
    """Launch, and return the nodes or the error."""
    try:
        return one.launch()
    except ec2_errors.Ec2Error as error:
        return error


def test_what_changes_while_the_user_is_asked_is_planned_and_asked_again(world_module: Any, keys: list[Path]) -> None:
    world = new_world(world_module, 0)
    first = desk(world_module, world, "first", keys[0], n_workers=2)
    others = [desk(world_module, world, "second", keys[0], n_workers=n) for n in (1, 2)]
    asked: list[str] = []

    def confirm(text: str) -> None:
        asked.append(text.partition(":")[0])
        if others:
            others.pop(0).launch()

    assert len(launch(first.cluster, first.settings, confirm)) == 3
    assert asked == ["start 2 workers and 1 master", "start 1 worker"]
    assert {each["by"] for each in own(world)} == {"second"}
    assert len(own(world)) == 3
    cleared(world_module, world, keys[0])


def test_who_wants_fewer_nodes_than_another_launch_is_told_what_helps(world_module: Any, keys: list[Path]) -> None:
    for remedy in ("raise", "shutdown"):
        world = new_world(world_module, 0)
        desk(world_module, world, "first", keys[0], n_workers=3).launch()
        second = desk(world_module, world, "second", keys[0], n_workers=2)
        with pytest.raises(ec2_errors.SettingsError, match="has 3 workers, and n_workers is 2: raise it, or run shutdown first"):
            second.launch()
        if remedy == "raise":
            assert len(desk(world_module, world, "second", keys[0], n_workers=3).launch()) == 4
        else:
            shutdown(second.cluster)
            assert len(second.launch()) == 3
        cleared(world_module, world, keys[0])


def drawn(chance: random.Random, keys: list[Path]) -> dict[str, Any]:
    """Return random settings of one of two terminals."""
    kind = chance.choice(["m5.large", "c5.large"])
    return {
        "n_workers": chance.choice([1, 2, 2, 3]),
        "availability_zone": chance.choice(["", "us-west-2b", "us-west-2b", "us-west-2c"]),
        "fallback_zones": chance.choice([(), ("us-west-2a",)]),
        "master_type": kind,
        "worker_type": kind,
        "placement_group": chance.choice([True, False]),
        "key": chance.choice([keys[0], keys[0], keys[1]]),
    }


def failing(module: Any, chance: random.Random, rate: float) -> Any:
    def faults(operation: str, parameters: Any) -> Any:
        if operation == "run_instances" and chance.random() < 2 * rate:
            return fault(module, chance.choice(["InsufficientInstanceCapacity", "VcpuLimitExceeded", "Unsupported"]), operation)
        return fault(module, chance.choice(PASSING), operation) if chance.random() < rate else None

    return faults


# after these errors the nodes stay, which is reported
STAY = (ec2_errors.NodeLostError, ec2_errors.DeadlineError, ec2_errors.OthersError)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, 200, 25))
def test_two_launches_at_once_settle_or_refuse(world_module: Any, keys: list[Path], first: int) -> None:
    """Check that two concurrent launches succeed or are refused, in 200 random schedules with a different seed each."""
    for seed in range(first, first + 25):
        chance = random.Random(seed)

        world = new_world(world_module, seed)
        world.faults = failing(world_module, chance, chance.choice([0.0, 0.03, 0.1]))
        world.late = lambda chance=chance: chance.choice([0.0, 0.0, 2.0, 5.0])
        wanted = [drawn(chance, keys) for _ in range(2)]
        if chance.random() < 0.3:
            wanted[1] = wanted[0]
        desks = [desk(world_module, world, f"desk {i}", each.pop("key"), **each) for i, each in enumerate(map(dict, wanted))]
        results = world.turns.run([each.launch for each in desks])
        check(world, desks, results, seed)
        advice(world_module, world, desks[0], keys, seed)


class Taken:
    """A stand-in for the cluster of a job that is kept alive: EC2 takes its nodes at random, according to the seed. Its
    launches are real.
    """

    def __init__(self, world: Any, one: Desk, chance: random.Random) -> None:
        self.world, self.one, self.chance, self.attempts, self.steps = world, one, chance, 0, 0

    def follow(self, job: str) -> int | None:
        self.world.turns.pause(60.0)
        mine = own(self.world)
        for each in self.chance.sample(mine, min(len(mine), self.chance.choice([0, 1, 2]))):
            each["ended"] = self.world.turns.now
            self.world.ended_by[each["id"]] = "EC2"
        return self.chance.choice([75, 75, 3, None, 0])

    def was_stopped(self) -> str:
        return ""

    def newest(self) -> str:
        self.steps += 1
        return f"step-{self.steps}"

    def leave(self, charge: Charge, *, everything: bool) -> None:
        wanted = [node.id for node in self.one.cluster.nodes() if everything or self.chance.random() < 0.2]
        end_nodes(self.one.cluster, wanted)
        for identity in wanted:
            self.world.ended_by[identity] = "left"

    def complete(self, charge: Charge, max_hours: int) -> None:
        self.attempts += 1
        self.one.launch()

    def start(self, charge: Charge) -> str:
        return "jobs/1"


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_a_job_that_is_kept_alive_beside_another_launch_leaves_nothing_untold(
    world_module: Any, keys: list[Path], first: int, tmp_path: Path
) -> None:
    """Check the nodes in 100 schedules of a job that is kept alive: EC2 may take nodes, calls may fail, a second terminal may
    launch the same cluster, and a shutdown ends each schedule.
    """
    for seed in range(first, first + 25):
        chance = random.Random(seed)
        world = new_world(world_module, seed)
        alive, other = (desk(world_module, world, f"desk {i}", keys[0], state_dir=tmp_path / f"{seed}-{i}") for i in (0, 1))
        alive.launch()
        world.faults = failing(world_module, chance, chance.choice([0.0, 0.03, 0.1]))
        world.late = lambda chance=chance: chance.choice([0.0, 2.0])
        charge, work = Charge(["train"], False, 3, datetime.datetime.now(datetime.UTC).isoformat()), Taken(world, alive, chance)
        record.write(alive.settings, charge)

        def keep(one: Desk = alive, charge: Charge = charge, work: Taken = work) -> int:
            return keep_alive(charge, one.settings, one.cluster.cloud, work)

        both = chance.random() < 0.5
        results = world.turns.run([keep, *([other.launch] if both else [])])
        for result in results:
            assert not isinstance(result, Exception) or isinstance(result, ec2_errors.Ec2Error), (seed, result)
        assert work.attempts <= 3, seed
        assert charge.used <= 3, seed
        # others' nodes live, and nodes never exceed the cluster's size and the surplus that two launches settle
        assert sum(not each["by"] for each in world.live()) == len(STRANGERS), seed
        assert roles(world)["master"] <= 1 or both, seed
        assert sum(roles(world).values()) <= 3 or both, seed
        cleared(world_module, world, keys[0])


def check(world: Any, desks: list[Desk], results: list[Any], seed: int) -> None:
    for identity, who in world.ended_by.items():
        assert world.instances[identity]["by"] == who, seed
    assert sum(not each["by"] for each in world.live()) == len(STRANGERS), seed
    for number, result in enumerate(results):
        if isinstance(result, Exception):
            assert isinstance(result, ec2_errors.Ec2Error), (seed, result)
            told = isinstance(result, STAY) or "stays, and costs" in str(result) or "run shutdown" in str(result)
            assert told or not [each for each in own(world) if each["by"] == f"desk {number}"], (seed, result)
    if not any(isinstance(result, Exception) for result in results):
        most = max(each.settings.n_workers for each in desks)
        assert roles(world) == {"master": 1, "worker": most}, seed
    # each node accepts only the key of the user who started it
    for each in own(world):
        public = desks[int(each["by"][-1])].settings.keyfile.with_suffix(".pub").read_text()
        assert each["lets_in"].split()[:2] == public.split()[:2], seed


def advice(module: Any, world: Any, one: Desk, keys: list[Path], seed: int) -> None:
    """Check that a launch without faults completes the cluster, or that following the remedy in its refusal does."""
    world.faults = lambda operation, parameters: None
    world.turns.now += 60
    again = attempt(one)
    if isinstance(again, ec2_errors.SettingsError):
        assert "run shutdown" in str(again), (seed, again)
        shutdown(one.cluster)
        again = one.launch()
    assert len(again) == one.settings.n_workers + 1, seed
    assert roles(world) == {"master": 1, "worker": one.settings.n_workers}, seed
    cleared(module, world, keys[0])
