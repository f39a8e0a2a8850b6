"""The parts of the MPI transport that need no MPI: pieces, pace, listeners, farewell, environment, barrier."""

from __future__ import annotations

import os
import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnode.errors import MissingRanksError
from psnode.transport.barrier import gather_hello, send_hello
from psnode.transport.base import Arrival, Inbox
from psnode.transport.loopback import loopback_group
from psnode.transport.mpi.environment import WorldRank, job_name, on_one_host, place
from psnode.transport.mpi.farewell import Farewell
from psnode.transport.mpi.fragments import Fragment, cut, join_tag, read_total, split_tag
from psnode.transport.mpi.listening import Listener, Woken, can_listen
from psnode.transport.mpi.pace import BUSY_LAST, IDLE_LAST, LISTEN, Nap, Pace

MPI_TAG_UB_AT_LEAST = 32767


@given(st.integers(0, 4095), st.sampled_from(Fragment))
def test_a_tag_and_a_part_travel_in_a_tag_that_every_mpi_grants(tag: int, part: Fragment) -> None:
    assert 0 <= join_tag(tag, part) <= MPI_TAG_UB_AT_LEAST
    assert split_tag(join_tag(tag, part)) == (tag, part)


@given(st.binary(max_size=300), st.integers(1, 100))
def test_pieces_put_together_are_the_message(message: bytes, piece_bytes: int) -> None:
    parts = list(cut(np.frombuffer(message, np.uint8), 5, lambda: piece_bytes))
    kinds = [split_tag(part.mpi_tag)[1] for part in parts]
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    if len(message) <= piece_bytes:
        assert kinds == [Fragment.WHOLE]
        assert parts[0].data.tobytes() == message
    else:
        assert kinds == [Fragment.TOTAL] + [Fragment.PIECE] * -(-len(message) // piece_bytes)
        assert read_total(parts[0].data) == len(message)
        assert max(part.data.size for part in parts[1:]) <= piece_bytes
        assert b"".join(part.data.tobytes() for part in parts[1:]) == message


def test_an_idle_thread_without_ears_sleeps_longer_and_longer_up_to_a_millisecond() -> None:
    pace = Pace(ears=False)
    pace.next(moved=True, busy=False, woken=None)
    naps = [pace.next(moved=False, busy=False, woken=None) for _ in range(20)]
    assert not any(nap.listening for nap in naps)
    assert naps[0].seconds == 0.2e-3
    assert naps == sorted(naps)
    assert naps[-1].seconds == IDLE_LAST == 1e-3


def test_an_idle_thread_with_ears_listens_and_pauses_after_a_sound_that_was_no_message() -> None:
    pace = Pace(ears=True)
    assert pace.next(moved=False, busy=False, woken=None) == Nap(LISTEN, listening=True)
    assert pace.next(moved=False, busy=False, woken=Woken.SOUND) == Nap(0.2e-3)
    assert pace.next(moved=False, busy=False, woken=None) == Nap(LISTEN, listening=True)


def test_where_messages_make_no_sound_the_thread_soon_polls_like_one_without_ears_and_recovers() -> None:
    pace = Pace(ears=True)
    for _ in range(3):
        pace.judge(Woken.TIMEOUT)
    assert pace.deaf
    naps = [pace.next(moved=False, busy=False, woken=None) for _ in range(20)]
    assert naps[0] == Nap(0.2e-3)
    assert max(nap.seconds for nap in naps) == IDLE_LAST
    for _ in range(16):
        pace.judge(Woken.SOUND)
    assert not pace.deaf


def test_a_fast_transfer_is_polled_without_sleep_and_a_slow_one_is_not() -> None:
    pace = Pace(ears=True)
    assert all(pace.next(moved=True, busy=True, woken=None) == Nap(0) for _ in range(100))
    naps = [pace.next(moved=False, busy=True, woken=None) for _ in range(100)]
    assert naps[0] == Nap(0)
    assert naps[-1] == Nap(BUSY_LAST)
    assert pace.next(moved=True, busy=True, woken=None) == Nap(0)


@pytest.mark.skipif(not can_listen(), reason="needs Linux")
class TestListener:
    """Tests of Listener. Each step takes far less than a second; a timeout of 20 s would indicate a hang."""

    def test_silence_is_silence(self) -> None:
        ears = Listener(f"test-{os.getpid()}", 0)
        assert ears.wait(0.005) is Woken.TIMEOUT
        ears.close()

    def test_an_order_of_another_thread_ends_the_sleep_or_the_next_one(self) -> None:
        ears = Listener(None, 0)
        ears.wake()
        assert ears.wait(20) is Woken.ORDER
        threading.Timer(0.05, ears.wake).start()
        assert ears.wait(20) is Woken.ORDER
        assert ears.wait(0.001) is Woken.TIMEOUT
        ears.close()

    def test_a_knock_is_heard_by_the_rank_it_is_for(self) -> None:
        job = f"test-{os.getpid()}"
        ears = [Listener(job, rank) for rank in range(3)]
        for _ in range(1000):  # more than any queue holds
            ears[0].knock(1)
        assert ears[1].wait(20) is Woken.SOUND
        assert ears[1].wait(0.001) is Woken.TIMEOUT
        assert ears[2].wait(0.001) is Woken.TIMEOUT
        ears[0].knock(7)  # no rank listens
        for each in ears:
            each.close()

    def test_bytes_for_a_tcp_socket_are_heard_once_even_if_nobody_reads_them(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            sender = socket.create_connection(server.getsockname())
            receiver, _ = server.accept()
            ears = Listener(None, 0)
            ears.look()
            ears.wait(0.001)  # edges of earlier bytes
            sender.send(b"x")
            assert ears.wait(20) is Woken.SOUND
            assert ears.wait(0.001) is Woken.TIMEOUT
            sender.send(b"y")
            assert ears.wait(20) is Woken.SOUND
            ears.close()
            sender.close()
            receiver.close()


def test_everybody_leaves_when_all_have_said_farewell_and_nobody_before() -> None:
    everybody = frozenset(range(3))
    master, first, second = Farewell(0), Farewell(1), Farewell(2)
    assert first.due(everybody) == {0}
    assert first.due(everybody) == frozenset()
    master.hear(1)
    assert master.due(everybody) == frozenset()
    assert not master.agreed(everybody)
    assert second.due(everybody) == {0}
    master.hear(2)
    assert master.due(everybody) == {1, 2}
    assert master.agreed(everybody)
    assert not first.agreed(everybody)
    first.hear(0)
    assert first.agreed(everybody)


def test_the_dead_are_not_waited_for() -> None:
    master, worker = Farewell(0), Farewell(1)
    master.hear(1)
    assert master.due(frozenset({0, 1})) == {1}
    assert master.agreed(frozenset({0, 1}))
    assert worker.due(frozenset({1, 2})) == {0}
    assert worker.agreed(frozenset({1, 2}))  # rank 0 is dead


def test_a_rank_alone_leaves_at_once() -> None:
    alone = Farewell(0)
    assert alone.due(frozenset({0})) == frozenset()
    assert alone.agreed(frozenset({0}))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "5"}, WorldRank(2, 5)),
        ({"PMI_RANK": "0", "PMI_SIZE": "3"}, WorldRank(0, 3)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, WorldRank(1, 2)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, WorldRank(3, 4)),
        ({"PMIX_RANK": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, WorldRank(1, 4)),
        # a batch script of Slurm is not a rank
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
        # mpirun inside a Slurm job
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "9"}, WorldRank(1, 2)),
        ({}, None),
        ({"PMI_RANK": "zero", "PMI_SIZE": "3"}, None),
        ({"PMI_RANK": "3", "PMI_SIZE": "3"}, None),
    ],
)
def test_launchers_say_who_a_process_is(environ: dict[str, str], expected: WorldRank | None) -> None:
    assert place(environ) == expected


def test_the_ranks_of_a_job_share_a_name_that_no_other_job_has() -> None:
    assert job_name({"PMIX_NAMESPACE": "prterun-host-12@1", "SLURM_JOB_ID": "7"}) == "prterun-host-12@1"
    assert job_name({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}) == "7.0"
    assert job_name({"SLURM_JOB_ID": "7"}) is None


def test_all_ranks_are_on_one_host_only_if_the_launcher_says_so() -> None:
    world = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}
    assert on_one_host({**world, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"})
    assert not on_one_host({**world, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    assert not on_one_host(world)


def test_the_barrier_returns_what_everybody_said_and_leaves_other_messages_alone() -> None:
    ends = loopback_group(3)
    send_hello(ends[2], b"two")
    ends[2].send(0, 5, [b"first"])
    ends[2].send(0, 5, [b"second"])
    send_hello(ends[1], b"one")
    assert gather_hello(ends[0], b"zero", 5.0) == {0: b"zero", 1: b"one", 2: b"two"}
    assert ends[0].wait(5, 1).data.tobytes() == b"first"
    assert ends[0].wait(5, 1).data.tobytes() == b"second"


def test_the_barrier_names_all_who_are_missing_once_the_time_is_over() -> None:
    ends = loopback_group(5)
    threading.Timer(0.1, send_hello, (ends[3], b"three")).start()
    began = time.monotonic()
    with pytest.raises(MissingRanksError, match=r"ranks 1, 2, 4 did not report within 0\.5 s") as caught:
        gather_hello(ends[0], b"", 0.5)
    assert caught.value.ranks == (1, 2, 4)
    assert time.monotonic() - began >= 0.5


def test_the_barrier_does_not_wait_for_a_rank_that_died() -> None:
    ends = loopback_group(3)
    ends[2].die("crashed")
    with pytest.raises(MissingRanksError) as caught:
        gather_hello(ends[0], b"", 60.0)
    assert caught.value.ranks == (2,)


def test_events_put_back_come_first_and_in_their_order() -> None:
    inbox = Inbox()
    for event in range(5):
        inbox.post(event)
    taken = [inbox.wait(60), inbox.wait(60)]
    inbox.put_back(taken)
    assert [inbox.poll() for _ in range(6)] == [0, 1, 2, 3, 4, None]


def test_an_exception_in_the_inbox_is_raised_to_who_waits() -> None:
    end = loopback_group(1)[0]
    end.inbox(0).post(RuntimeError("a thread of mine failed"))
    with pytest.raises(RuntimeError, match="of mine"):
        end.wait(0, 1)
    end.inbox(0).post(RuntimeError("again"))
    with pytest.raises(RuntimeError, match="again"):
        end.poll(0)
    end.send(0, 0, [b"x"])
    assert isinstance(end.inbox(0).poll(), Arrival)
