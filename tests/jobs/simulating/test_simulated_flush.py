"""The flush after a loss: from which shard a gradient is fetched, and what happens when that shard is lost too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from psnode.jobs.simulating.simulated_flush import SimulatedFlush

LOST, VERSION = 2, 7


class FakePaths:
    """Paths whose frames to the master wait until `arrive` is called."""

    def __init__(self) -> None:
        self.fetched: list[tuple[int, Callable[..., object], tuple[Any, ...]]] = []
        self.passed_links = False  # True if frames of a lost rank arrive, since the links have carried them

    def up(self, rank: int, nbytes: int, call: Callable[..., object], *arguments: object) -> int:
        self.fetched.append((rank, call, arguments))
        return nbytes

    def down(self, rank: int, nbytes: int, call: Callable[..., object], *arguments: object) -> int:
        call(*arguments)
        return nbytes

    def tell(self, rank: int, call: Callable[..., object], *arguments: object) -> None:
        call(*arguments)

    def arrive(self, rank: int) -> None:
        for each in [each for each in self.fetched if each[0] == rank]:
            self.fetched.remove(each)
            each[1](*each[2])


class FakeShard:
    """A shard that lacks the gradients of rank LOST for some groups."""

    def __init__(self, *lacks: int) -> None:
        self.lacking = list(lacks)
        self.done: list[str] = []
        self.still = False

    def stands_still(self, seconds: float) -> bool:
        return self.still

    def lacks(self, rank: int, version: int) -> list[int]:
        assert version == VERSION
        return self.lacking if rank == LOST else [0, 1]

    def take_of_lost(self, rank: int, group: int, version: int) -> None:
        assert version == VERSION
        self.done.append(f"group {group} of {rank}")

    def withdraw(self, rank: int) -> None:
        self.done.append(f"without {rank}")


class Flushed:
    def __init__(self, **shards: FakeShard) -> None:
        self.shards = {int(name[1:]): shard for name, shard in shards.items()}
        self.paths = FakePaths()
        self.nbytes = 0
        self.flush = SimulatedFlush(cast(Any, self.shards), cast(Any, self.paths), [10, 100], self.count)

    def count(self, version: int, nbytes: int) -> None:
        self.nbytes += nbytes

    def lose(self, rank: int) -> None:
        self.shards.pop(rank, None)
        if not self.paths.passed_links:
            self.paths.fetched = [each for each in self.paths.fetched if each[0] != rank]
        self.flush.begin(rank, VERSION)


def test_shards_that_lack_a_gradient_get_it_from_one_that_has_it_before_all_go_on() -> None:
    job = Flushed(r1=FakeShard(0, 1), r3=FakeShard(0), r4=FakeShard())
    job.lose(LOST)
    assert [shard.done for shard in job.shards.values()] == [[], [], []]
    job.paths.arrive(3)  # has group 1
    assert job.shards[3].done == []
    job.paths.arrive(4)  # has group 0
    assert [sorted(shard.done) for shard in job.shards.values()] == [
        ["group 0 of 2", "group 1 of 2", "without 2"], ["group 0 of 2", "without 2"], ["without 2"],
    ]  # fmt: skip
    assert job.shards[1].done[-1] == "without 2"
    assert job.nbytes == 2 * 10 + 10 + 100 + 100


def test_a_shard_that_does_not_stand_still_sends_a_gradient() -> None:
    job = Flushed(r1=FakeShard(1), r3=FakeShard(), r4=FakeShard())
    job.shards[3].still = True
    job.lose(LOST)
    assert [rank for rank, _, _ in job.paths.fetched] == [4]


def test_a_gradient_that_all_shards_or_no_shard_has_is_not_sent() -> None:
    job = Flushed(r1=FakeShard(0), r3=FakeShard(0))
    job.lose(LOST)
    assert job.paths.fetched == [] and [shard.done for shard in job.shards.values()] == [["without 2"], ["without 2"]]


@pytest.mark.parametrize("others", [1, 0])
def test_the_loss_of_the_shard_that_sends_a_gradient_makes_another_one_send_it_if_there_is_one(others: int) -> None:
    holders = {f"r{rank}": FakeShard() for rank in range(3, 4 + others)}
    job = Flushed(r1=FakeShard(1), **holders)
    job.lose(LOST)
    job.lose(3)
    for rank in range(4, 4 + others):
        job.paths.arrive(rank)
    assert job.shards[1].done.count("group 1 of 2") == others
    assert "without 2" in job.shards[1].done and "without 3" in job.shards[1].done
    assert job.paths.fetched == []


def test_a_frame_that_the_links_have_carried_when_its_sender_is_lost_is_passed_on_once() -> None:
    job = Flushed(r1=FakeShard(1), r3=FakeShard(), r4=FakeShard())
    job.paths.passed_links = True
    job.lose(LOST)
    job.lose(3)
    assert [rank for rank, _, _ in job.paths.fetched] == [3, 4]
    job.paths.arrive(3)
    assert job.shards[1].done.index("group 1 of 2") < job.shards[1].done.index("without 2")
    job.paths.arrive(4)
    assert job.shards[1].done.count("group 1 of 2") == 1
