"""Data that Task.train_data may return: data sets of torch and Hugging Face, whose examples are dealt exactly, in this
process or in others.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Subset

from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.tasks.data.given import data_of, eval_data_of
from psnode.tasks.data.sampler import Sampler, permutation

COUNT, BATCH, SEED = 20, 3, 9
SPARE = Sampler(COUNT, 1, 2, BATCH, batches_per_step=2, seed=SEED)


class Noisy(Dataset[Any]):
    """Examples with noise from torch's and NumPy's generators, and a field that is 1 if mpi4py is loaded in the process."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(3), float(np.random.rand()), int("mpi4py" in sys.modules), os.getpid()


class Own:
    """An implementation of psnode's Data."""

    def __len__(self) -> int:
        return COUNT

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> Any:
        noise = np.zeros(3) if rng is None else rng.standard_normal(3)
        return torch.from_numpy(indices), torch.from_numpy(noise), os.getpid()


class Counting(IterableDataset[int]):
    """The integers from 0 to `count` - 1."""

    def __init__(self, count: int = COUNT) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


class Measured(Counting):
    def __len__(self) -> int:
        return self.count


class Broken(Noisy):
    """A data set that fails in the given way: at example 7, or because all examples have different sizes."""

    def __init__(self, way: str) -> None:
        self.way = way

    def __getitem__(self, index: int) -> Any:
        if index == 7 and self.way == "raise":
            raise ValueError("the seventh\nis odd")
        if index == 7 and self.way == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(index) if self.way == "ragged" else index


def doubled(examples: list[Any]) -> list[Any]:
    return [2 * example[0] for example in examples]


def failing(examples: list[Any]) -> Any:
    raise KeyError("no labels")


def taken(given: Any, finished: int = 0, last: int = 4, sampler: Sampler = SPARE, **settings: Any) -> list[list[Any]]:
    data: Any = data_of(given, Config(batch_size=BATCH, batches_per_step=2, **settings), workers=2)
    feed = data.feed(sampler, finished, last)
    try:
        return [next(feed) for _ in range(last - finished)]
    finally:
        feed.close()


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    return len(one) == len(two) and all(map(same, one, two)) if isinstance(one, (list, tuple)) else bool(one == two)


def without_process(steps: list[list[Any]], told: int = 1) -> Any:
    """Return all items without the `told` last ones, which describe the process."""
    return [[batch[:-told] for batch in step] for step in steps]


@pytest.mark.serial
def test_examples_are_dealt_exactly_and_alike_whichever_process_makes_them() -> None:
    here = taken(Noisy())
    for step, batches in enumerate(here):
        order = permutation(COUNT, SEED, step)  # 2 workers, 2 batches of 3: one step per epoch
        assert [batch[0].tolist() for batch in batches] == [order[3:6].tolist(), order[9:12].tolist()]
    assert same(without_process(here[2:], 2), without_process(taken(Noisy(), 2), 2))
    there = taken(Noisy(), data_workers=2)
    assert same(without_process(here, 2), without_process(there, 2))  # another test may have imported mpi4py here
    assert same(here, taken(DataLoader(Noisy(), BATCH)))
    assert {int(pid) for step in there for batch in step for pid in batch[-1]} != {os.getpid()}
    assert not any(batch[3].any() for step in there for batch in step)  # no mpi4py in the processes that make batches
    noise = torch.cat([batch[1].flatten() for step in here for batch in step])
    assert len(torch.unique(noise)) == noise.numel()


@pytest.mark.serial
def test_psnodes_own_data_are_made_by_processes_to_the_bit() -> None:
    there = taken(Own(), data_workers=1)
    own = Own()
    assert data_of(own, Config()) is own
    here = [[own.batch(*each) for each in step] for step in SPARE.wanted(1, 4)]
    assert len(here) == 4 and same(without_process(here), without_process(there))
    assert there[0][0][-1] != os.getpid()


def test_a_loader_says_its_collate_function_and_lists_are_data_sets() -> None:
    order = permutation(COUNT, SEED, 0)
    assert taken(DataLoader(Noisy(), collate_fn=doubled), 0, 1) == [[(2 * order[3:6]).tolist(), (2 * order[9:12]).tolist()]]
    assert taken(list(range(COUNT)), 0, 1)[0][0].tolist() == order[3:6].tolist()
    assert taken(Subset(list(range(100, 140)), range(COUNT)), 0, 1)[0][0].tolist() == (100 + order[3:6]).tolist()  # type: ignore[arg-type]
    data = eval_data_of(list(range(COUNT)), Config())
    assert len(data) == COUNT and data.batch(np.arange(4, 9), None).tolist() == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("processes", [0, pytest.param(1, marks=pytest.mark.serial)])
def test_workers_share_an_iterable_and_begin_again_when_it_is_over(processes: int) -> None:
    shares = []
    for worker in (0, 1):
        data: Any = data_of(Measured(), Config(batch_size=2, data_workers=processes), workers=2)
        assert len(data) == COUNT
        assert data.batch(np.arange(2), None).tolist() == [0, 1]
        feed = data.feed(Sampler(COUNT, worker, 2, 2), 0, 6)
        shares.append([next(feed)[0].tolist() for _ in range(6)])
        feed.close()
    assert shares[0] == [[0, 2], [4, 6], [8, 10], [12, 14], [16, 18], [0, 2]]
    assert shares[1] == [[1, 3], [5, 7], [9, 11], [13, 15], [17, 19], [1, 3]]


def test_an_iterable_without_a_length_has_that_of_the_tasks_epoch() -> None:
    assert len(data_of(Counting(), Config(batch_size=2, batches_per_step=3), workers=4, steps=5)) == 2 * 3 * 4 * 5
    with pytest.raises(ConfigurationError, match=r"a Counting \(test_given.py:\d+\) has no length"):
        data_of(Counting(), Config())
    feed: Any = data_of(Measured(3), Config(batch_size=2), workers=2)
    with pytest.raises(ConfigurationError, match="gave worker 2 of 2 no batch of 2 examples"):
        next(feed.feed(Sampler(COUNT, 1, 2, 2), 0, 1))


class Endless:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Endless(), r"train_data returned a Endless \(test_given.py:\d+\) without __len__"),
        (7, "train_data returned a int: it must return a data set"),
        (None, "train_data returned a NoneType"),
        (DataLoader(Noisy(), batch_size=64), "batch_size=64, and --batch-size is 32"),
        (DataLoader(Noisy(), sampler=range(COUNT)), "sampler of its own"),
        (DataLoader(Noisy(), sampler=RandomSampler(Noisy(), replacement=True)), "sampler of its own"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_data_is_refused(given: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        data_of(given, Config())


@pytest.mark.parametrize("processes", [0, pytest.param(1, marks=pytest.mark.serial)])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Broken("raise"), r"ValueError: the seventh is odd \(test_given.py:\d+ in __getitem__\)"),
        (Broken("ragged"), r"RuntimeError: .* \(collate.py:\d+ in collate_tensor_fn\)"),
        (DataLoader(Noisy(), collate_fn=failing), r"KeyError: 'no labels' \(test_given.py:\d+ in failing\)"),
    ],
    ids=["example", "ragged", "collate"],
)
def test_an_exception_of_the_data_is_one_line_with_its_place(given: Any, text: str, processes: int) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        taken(given, data_workers=processes)
    assert "\n" not in str(caught.value)


@pytest.mark.long
@pytest.mark.serial
def test_a_process_that_dies_and_data_that_cannot_travel_are_told_in_one_line() -> None:
    with pytest.raises(ConfigurationError, match=r"a process that loads batches died .* --data-workers 0") as caught:
        taken(Broken("die"), data_workers=1)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="cannot be sent to other processes"):
        taken(DataLoader(Noisy(), collate_fn=lambda examples: examples), data_workers=1)


def test_data_sets_of_hugging_face_are_dealt(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"x": [[float(i), 0.0] for i in range(COUNT)], "y": list(range(COUNT))}).save_to_disk(tmp_path)
    data = datasets.load_from_disk(tmp_path).with_format("torch")
    order = permutation(COUNT, SEED, 0)
    first = taken(data, 0, 1)[0][0]
    assert first["y"].tolist() == order[3:6].tolist() and first["x"][:, 0].tolist() == order[3:6].tolist()
    stream: Any = data_of(data.to_iterable_dataset(num_shards=2), Config(batch_size=2), workers=2, steps=5)
    seen = []
    for worker in (0, 1):
        feed = stream.feed(Sampler(COUNT, worker, 2, 2), 0, 5) if worker == 0 else None
        seen += [next(feed)[0]["y"].tolist() for _ in range(5)] if feed is not None else []
        if feed is not None:
            feed.close()
    assert sorted(number for batch in seen for number in batch) == list(range(10))
