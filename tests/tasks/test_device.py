"""The device of a rank, and the copies of gradients from the device to the host; fakes replace torch's calls to CUDA."""

from __future__ import annotations

import contextlib
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from psnode.exchange.fetch import SideStream
from psnode.exchange.flat_model import describe, trainable
from psnode.exchange.gradients import Gradients
from psnode.exchange.trained_model import TrainedModel
from psnode.plans.rule import make_plan
from psnode.tasks.device import choose_device, to_device
from psnode.transport.loopback import loopback_group
from psnode.transport.mpi.environment import local_rank
from psnode.transport.mpi.thread import _local_rank
from psnode.worker.backward_hooks import GroupHooks
from psnode.worker.computation import seed_torch

OMPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8"}


def test_a_batch_that_is_a_mapping_of_its_own_kind_is_moved_too() -> None:
    batch = UserDict(x=torch.ones(2), names=["a"], pair=(torch.ones(1), 3))  # like a Hugging Face BatchEncoding
    moved = to_device(batch, torch.device("meta"))
    assert isinstance(moved, UserDict)
    assert (moved["x"].device.type, moved["pair"][0].device.type) == ("meta", "meta")
    assert (moved["names"], moved["pair"][1]) == (["a"], 3)
    assert batch["x"].device.type == "cpu"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({**OMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 1),
        ({**OMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "1", **SLURM, "SLURM_STEP_ID": "0", "SLURM_LOCALID": "3"}, 1),
        ({"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "2"}, 2),
        ({"MV2_COMM_WORLD_RANK": "5", "MV2_COMM_WORLD_SIZE": "8", "MV2_COMM_WORLD_LOCAL_RANK": "3"}, 3),
        ({**SLURM, "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"}, 1),
        ({"PMIX_RANK": "5", **SLURM, "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"}, 1),
        ({**SLURM, "SLURM_LOCALID": "1"}, None),  # a batch script, which is not a job step
        ({**OMPI, "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0"}, None),  # mpirun's daemon
        ({**OMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "x"}, None),
        ({}, None),
    ],
)
def test_the_launcher_says_which_rank_of_its_host_a_process_is(environ: dict[str, str], expected: int | None) -> None:
    assert local_rank(environ) == expected


class FakeMPI:
    """A world in which ranks 4, 5 and 6 share this host; this is rank 6."""

    COMM_TYPE_SHARED = "shared"

    def __init__(self) -> None:
        self.COMM_WORLD, self.freed = self, 0

    def Split_type(self, kind: str) -> FakeMPI:  # noqa: N802
        assert kind == "shared"
        return self

    def Get_rank(self) -> int:  # noqa: N802
        return 2

    def Free(self) -> None:  # noqa: N802
        self.freed += 1


def test_mpi_is_asked_where_the_launcher_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mpi = FakeMPI()
    for name in ("OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    assert (_local_rank(mpi), mpi.freed) == (2, 1)
    monkeypatch.setenv("MPI_LOCALRANKID", "7")
    assert (_local_rank(mpi), mpi.freed) == (7, 1)


def test_threads_of_one_process_count_as_ranks_of_its_host() -> None:
    assert [end.local_rank for end in loopback_group(3)] == [0, 1, 2]


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fake a host with four devices, and return the list of devices made current."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(device.index))
    return chosen


def test_each_rank_of_a_host_computes_on_a_device_of_its_own(current: list[int]) -> None:
    workers = [choose_device(True, rank).index for rank in (1, 2, 3, 4)]  # rank 0 of this host is the master
    assert sorted(workers) == [0, 1, 2, 3] and current == workers
    assert [choose_device(True, rank).index for rank in (0, 1, 2, 3)] == [0, 1, 2, 3]  # a host without the master
    assert choose_device(False, 3) == torch.device("cpu") and len(current) == 8


def test_dropout_is_seeded_on_the_ranks_own_device_and_on_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    generators = [torch.Generator() for _ in range(3)]
    untouched = [generator.initial_seed() for generator in generators]
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    seed_torch(1, 2, 3, torch.device("cuda", 1))
    first = generators[1].initial_seed()
    assert [generators[0].initial_seed(), generators[2].initial_seed()] == [untouched[0], untouched[2]]
    torch.rand(3, generator=generators[1])
    seed_torch(1, 2, 3, torch.device("cuda", 1))
    assert generators[1].initial_seed() == first == torch.default_generator.initial_seed()
    # a step has the same random numbers whenever it is taken
    assert torch.equal(torch.rand(3, generator=generators[1]), torch.rand(3))
    seed_torch(1, 2, 4, torch.device("cuda", 1))
    assert generators[1].initial_seed() != first


def test_a_steps_copy_of_the_buffers_stays_where_the_model_is() -> None:
    """Check that a step's copies of the buffers stay on the model's device, meta: copying from this device to the host is an
    error, so an attempt would be noticed.
    """
    model = TrainedModel.__new__(TrainedModel)
    model.model = nn.BatchNorm1d(3, device="meta")
    found = model.buffers()
    assert {name: value.device.type for name, value in found.items()} == {
        "running_mean": "meta", "running_var": "meta", "num_batches_tracked": "meta",
    }  # fmt: skip
    assert found["running_mean"] is not model.model.running_mean


class Copies:
    """A device whose copies complete only when they are awaited."""

    def __init__(self) -> None:
        self.begun: list[int] = []  # sizes, in the order of the calls
        self.over: list[int] = []

    def __call__(self, source: torch.Tensor, target: torch.Tensor) -> Any:
        self.begun.append(source.numel())
        return _Copy(self, source, target)


class _Copy:
    def __init__(self, copies: Copies, source: torch.Tensor, target: torch.Tensor) -> None:
        self._copies, self._source, self._target = copies, source, target

    def synchronize(self) -> None:
        self._target.copy_(self._source)
        self._copies.over.append(self._source.numel())


def test_gradients_leave_the_device_as_they_are_finished_and_only_their_reader_waits() -> None:
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 7, bias=False), nn.Linear(7, 2, bias=False))
    parameters = trainable(model)
    plan = make_plan(describe(model)[::-1], "identity", group_by="layer")
    copies = Copies()
    gradients = Gradients(parameters, plan, torch.device("cpu"), copies)
    begun_at_the_end_of: list[list[int]] = []
    hooks = GroupHooks(parameters, plan, gradients.collect, lambda group: begun_at_the_end_of.append(list(copies.begun)))
    for _ in range(2):  # nothing of the first step remains in the second
        copies.begun.clear()
        copies.over.clear()
        begun_at_the_end_of.clear()
        x = torch.randn(4, 3)
        expected = torch.autograd.grad(model(x).square().sum(), list(parameters.values()))[::-1]
        hooks.arm()
        model(x).square().sum().backward()
        hooks.flush()
        # the last layer's groups first, while other layers still compute
        assert begun_at_the_end_of == [[14], [14, 35], [14, 35, 15]]
        assert copies.over == []
        for group, gradient, read in zip(plan.groups, expected, ([14], [14, 35], [14, 35, 15]), strict=True):
            assert np.array_equal(gradients.flat(group.start, group.stop), gradient.reshape(-1).numpy())
            assert copies.over == read
            [(place, part)] = gradients.parts(group.start, group.stop)
            assert place == 0 and np.array_equal(part, gradient.reshape(-1).numpy()) and copies.over == read
        gradients.clear()


def test_a_copy_waits_for_what_was_computed_before_it_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def wait_stream(self, other: object) -> None:
            said.append(("wait", other))

    class Event:
        def record(self, stream: Stream) -> None:
            said.append("record")

        def synchronize(self) -> None:
            said.append("synchronize")

    @contextlib.contextmanager
    def within(stream: Stream) -> Iterator[None]:
        said.append("enter")
        yield
        said.append("leave")

    for name, value in (("Stream", Stream), ("Event", Event), ("stream", within)):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: said.append("keep"))
    target = torch.zeros(3)
    coming = SideStream(torch.device("cuda", 1))(torch.arange(3.0), target)
    assert said == [("wait", "stream of cuda:1"), "enter", "keep", "record", "leave"]
    coming.synchronize()
    assert said[-1] == "synchronize" and target.tolist() == [0.0, 1.0, 2.0]
