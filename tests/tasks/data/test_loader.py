"""A program's own loader: dealt by index and seeded by batch, in whichever process a batch is made."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
from multiprocessing import util
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from psnode.errors import ConfigurationError
from psnode.tasks.data.loader import Dealt, Streamed, is_map_style, steps_in
from psnode.tasks.data.sampler import Sampler, permutation


class Noisy(Dataset[Any]):
    """Examples with noise from torch's and NumPy's generators."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(3), float(np.random.rand())


def taken(loader: DataLoader[Any], finished: int, last: int) -> list[list[Any]]:
    sampler = Sampler(20, 1, 2, 3, batches_per_step=2, seed=9)
    feed = Dealt(loader).feed(sampler, finished, last)
    try:
        return [next(feed) for _ in range(last - finished)]
    finally:
        feed.close()


def same(one: Any, two: Any) -> bool:
    return all(
        torch.equal(a, b)
        for x, y in zip(one, two, strict=True)
        for s, t in zip(x, y, strict=True)
        for a, b in zip(s, t, strict=True)
    )


def test_batches_are_the_shares_of_the_worker_whichever_process_makes_them() -> None:
    here = taken(DataLoader(Noisy(), batch_size=3, shuffle=True), 0, 4)
    for step, batches in enumerate(here):
        order = permutation(20, 9, step)  # 2 workers, 2 batches of 3: one step per epoch
        assert [batch[0].tolist() for batch in batches] == [order[3:6].tolist(), order[9:12].tolist()]
    assert same(here, taken(DataLoader(Noisy(), batch_size=3, shuffle=True, num_workers=2), 0, 4))
    assert same(here[2:], taken(DataLoader(Noisy(), batch_size=3, shuffle=True), 2, 4))
    noise = torch.cat([batch[1] for batches in here for batch in batches])
    assert len(torch.unique(noise)) == noise.numel()


class Told(Dataset[Any]):
    """Examples that state if their process leaves signals to its parent, and the folder of its sockets."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        ignored = all(signal.getsignal(each) is signal.SIG_IGN for each in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP))
        return index, ignored, util.get_temp_dir(), multiprocessing.current_process().name


def named(number: int) -> None:
    multiprocessing.current_process().name = f"data {number}"


def test_processes_of_a_loader_leave_signals_to_the_rank_and_have_its_folder_of_sockets() -> None:
    loader = DataLoader(Told(), batch_size=3, shuffle=True, num_workers=1, worker_init_fn=named, collate_fn=list)
    ((batch, _),) = taken(loader, 0, 1)
    assert {example[1:] for example in batch} == {(True, util.get_temp_dir(), "data 0")}


def test_a_collate_function_and_a_data_set_that_reads_batches_are_kept() -> None:
    class Together(Noisy):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [-index for index in indices]

    loader = DataLoader(Together(), batch_size=3, shuffle=True, collate_fn=sum)
    order = permutation(20, 9, 0)
    assert taken(loader, 0, 1) == [[-order[3:6].sum(), -order[9:12].sum()]]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sampler": RandomSampler(Noisy(), replacement=True)},
        {"sampler": range(20)},
        {"batch_size": None},
        {"sampler": RandomSampler(Noisy(), num_samples=9)},
    ],
    ids=["in order", "with replacement", "own sampler", "single examples", "some of the examples"],
)
def test_a_loader_that_draws_in_another_way_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="shuffle=True"):
        Dealt(DataLoader(Noisy(), **{"batch_size": 3, **settings}))


def test_an_iterable_begins_again_when_it_is_over() -> None:
    sampler = Sampler(12, 0, 1, 2, batches_per_step=2)
    data = Streamed([1, 2, 3], 12)
    first = data.feed(sampler, 0, 2)
    assert [next(first), next(first)] == [[1, 2], [3, 1]]
    first.close()
    assert next(data.feed(sampler, 2, 9)) == [2, 3]  # continues after another deal
    with pytest.raises(ConfigurationError, match="no more batches"):
        next(Streamed(iter([1, 2, 3]), 12).feed(Sampler(12, 0, 1, 2, batches_per_step=4), 0, 1))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(4))


def test_what_has_indices_and_what_has_a_length() -> None:
    numbers = TensorDataset(torch.arange(6))
    assert is_map_style(DataLoader(numbers, batch_size=2))
    assert not is_map_style(DataLoader(Stream(), batch_size=2))
    assert not is_map_style([1, 2])
    assert steps_in(DataLoader(numbers, batch_size=2), 1, None) == 3
    assert steps_in(DataLoader(numbers, batch_size=2), 2, None) == 1
    assert steps_in(itertools.count(), 2, 7) == 7
    for endless in (itertools.count(), DataLoader(Stream(), batch_size=2)):
        with pytest.raises(ConfigurationError, match="steps_per_epoch=N"):
            steps_in(endless, 1, None)


@pytest.mark.parametrize(
    ("loader", "stated", "text"),
    [
        ([1, 2], 0, "steps_per_epoch must be a whole number of at least 1, not 0"),
        ([1, 2], -3, "steps_per_epoch must be a whole number of at least 1, not -3"),
        ([1, 2], 1.5, "steps_per_epoch must be a whole number of at least 1, not 1.5"),
        ([], None, "the iterable has no batches"),
        ([1], None, r"fewer batches \(1\) than batches_per_step \(2\)"),
    ],
)
def test_an_epoch_without_steps_is_refused(loader: list[int], stated: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        steps_in(loader, 2, stated)
