"""Data that Task.train_data and Task.eval_data may return: psnode's Data, and data sets and loaders of torch and Hugging Face."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, default_collate

from psnode.config import Config
from psnode.errors import ConfigurationError, PsnodeError
from psnode.task import Batch, Data
from psnode.tasks.data.loader import Drawn, draw, examples_of
from psnode.tasks.data.prefetch import Ahead
from psnode.tasks.data.processes import Batches, Begin, Collated, Stream, context, explained, sound
from psnode.tasks.data.sampler import Indices, MicroBatchRequest, Sampler

_HUGGING_FACE = "datasets."  # prefix of its modules; the method `batch` of its Dataset differs from that of psnode's Data


class Making(NamedTuple):
    """Settings for making batches of `batch` examples, joined by `collate`.

    If `processes` is 0, this process makes the batches while it holds `lock`. Otherwise that number of other processes makes
    them.
    """

    batch: int
    collate: Callable[[Any], Any] = default_collate
    processes: int = 0
    settings: dict[str, Any] = {}  # further arguments of a DataLoader with processes
    begin: Callable[[int], None] | None = None
    seed: int = 0
    lock: AbstractContextManager[Any] = nullcontext()

    def loader(self, dataset: Any, collate: Callable[[Any], Any] | None, **more: Any) -> DataLoader[Any]:
        """Return a DataLoader that makes the batches of `dataset`, a processes.Batches or processes.Stream."""
        if self.processes:
            more |= {"multiprocessing_context": context(), "worker_init_fn": Begin(self.begin), **self.settings}
        generator = torch.Generator().manual_seed(self.seed)  # torch's default generator belongs to the state of the run
        collated: Callable[[Any], Any] = Collated(collate)
        return DataLoader(dataset, collate_fn=collated, num_workers=self.processes, generator=generator, **more)


def data_of(
    given: Any,
    config: Config,
    *,
    workers: int = 1,
    steps: int | None = None,
    lock: AbstractContextManager[Any] | None = None,
    method: str = "train_data",
) -> Data:
    """Return `given` as the data of a run with `workers` workers. Raises ConfigurationError if it cannot be used as data.

    `steps` is Task.steps_per_epoch. `lock` is held while this process makes examples, because making them seeds the random
    generators of the process.
    """
    making = _making(given, config, lock or nullcontext(), method)
    dataset = given.dataset if isinstance(given, DataLoader) else given
    if isinstance(dataset, IterableDataset):
        return IterableExamples(dataset, making, _examples_of(dataset, config, workers, steps))
    if isinstance(dataset, Data) and not _is_hugging_face(dataset):
        return Whole(dataset, making) if making.processes else dataset
    if not hasattr(dataset, "__getitem__"):
        raise ConfigurationError(
            f"Task.{method} returned {_named(dataset)}: it must return a data set with __len__ and __getitem__, an "
            "IterableDataset, a DataLoader of one of them, or psnode's Data with __len__ and batch"
        )
    return Examples(dataset, making, _length(dataset, method))


def eval_data_of(given: Any, config: Config) -> Data:
    """Return `given` as the data of the evaluator.

    Raises ConfigurationError like `data_of`, and for data whose examples have no indices.
    """
    if isinstance(given, IterableDataset) or (isinstance(given, DataLoader) and isinstance(given.dataset, IterableDataset)):
        raise ConfigurationError(
            f"Task.eval_data returned {_named(given)}, which has no examples by number: return list(dataset)"
        )
    return data_of(given, config, method="eval_data")


class Examples:
    """The examples of a map-style data set. Random generators are seeded for each batch, so that a batch does not depend on the
    process that makes it."""

    def __init__(self, dataset: Any, making: Making, length: int) -> None:
        self._dataset, self._making, self._length = dataset, making, length

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: Indices, rng: np.random.Generator | None) -> Batch:
        """Return the examples at `indices`, collated."""
        with self._making.lock:
            seed = None if rng is None else int(rng.integers(2**63))
            make = Batches(partial(examples_of, self._dataset))
            return sound(Collated(self._making.collate)(make.__getitems__(Drawn(indices.tolist(), seed))))

    def feed(self, sampler: Sampler, finished: int, last: int) -> Any:
        """Return the batches of the steps after `finished` up to and including `last`."""
        if not self._making.processes:
            return _Here(self, sampler, finished, last)
        dataset, drawn = Batches(partial(examples_of, self._dataset)), draw(sampler, finished, last)
        loader = partial(self._making.loader, dataset, self._making.collate, batch_sampler=drawn)
        return Ahead(partial(_steps, partial(_batches, loader), sampler.batches_per_step))


class Whole:
    """psnode's Data, whose batches are made by other processes."""

    def __init__(self, data: Data, making: Making) -> None:
        self._data, self._making = data, making

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, indices: Indices, rng: np.random.Generator | None) -> Batch:
        """Return the batch that the data itself makes."""
        return self._data.batch(indices, rng)

    def feed(self, sampler: Sampler, finished: int, last: int) -> Ahead:
        """Return the batches of the steps after `finished` up to and including `last`."""
        wanted = itertools.chain.from_iterable(sampler.wanted(finished + 1, last))
        loader = partial(self._making.loader, Batches(partial(batch_of, self._data)), None, batch_sampler=wanted)
        return Ahead(partial(_steps, partial(_batches, loader), sampler.batches_per_step))


class IterableExamples:
    """An IterableDataset whose examples are dealt among P workers: worker r takes every P-th example, beginning with the r-th.

    When the data set ends, it starts again. After a resume, it starts with its first example. `examples` is the length of an
    epoch.
    """

    def __init__(self, dataset: Any, making: Making, examples: int) -> None:
        self._dataset, self._making, self._examples = dataset, making, examples
        self._place = (0, 1)
        self._batches = self._endless()
        self._first: Iterator[Batch] | None = None

    def __len__(self) -> int:
        return self._examples

    def batch(self, indices: Indices, rng: np.random.Generator | None) -> Batch:
        """Return one of the first batches, regardless of the indices, for trial passes."""
        with self._making.lock:
            for _ in range(2):
                if self._first is None:
                    self._first = iter(self._loader(self._making._replace(processes=0), 0))
                for batch in self._first:
                    return sound(batch)
                self._first = None
            raise self._too_few()

    def feed(self, sampler: Sampler, finished: int, last: int) -> Any:
        """Return the coming batches. The shares in `sampler` apply from the next start of the data set on."""
        self._place = (sampler.worker, sampler.workers)
        return Ahead(partial(_steps, lambda: self._batches, sampler.batches_per_step))

    def _loader(self, making: Making, epoch: int) -> DataLoader[Any]:
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        part = partial(part_of, self._dataset, *self._place)
        return making.loader(Stream(part), making.collate, batch_size=making.batch, drop_last=True)

    def _endless(self) -> Iterator[Batch]:
        for epoch in itertools.count():
            empty = True
            for batch in _batches(partial(self._loader, self._making, epoch)):
                empty = False
                yield batch
            if empty:
                raise self._too_few()

    def _too_few(self) -> ConfigurationError:
        return ConfigurationError(
            f"the {type(self._dataset).__name__} gave worker {self._place[0] + 1} of {self._place[1]} no batch of "
            f"{self._making.batch} examples: lower --batch-size, or have more data"
        )


class _Here:
    """Batches made on request by the requesting thread."""

    def __init__(self, data: Examples, sampler: Sampler, finished: int, last: int) -> None:
        self._data, self._steps = data, sampler.wanted(finished + 1, last)

    def __next__(self) -> list[Batch]:
        return [self._data.batch(*wanted) for wanted in next(self._steps)]

    def close(self) -> None:
        """Do nothing, since no resource is open."""


def batch_of(data: Data, wanted: MicroBatchRequest) -> Batch:
    """Return a batch that psnode's Data makes."""
    return data.batch(*wanted)


def part_of(dataset: Any, worker: int, workers: int) -> Iterator[Any]:
    """Return an iterator over every `workers`-th example, beginning with number `worker`, which counts from 0.

    Data sets of Hugging Face are split by their own function, which can deal out whole shards.
    """
    if _is_hugging_face(dataset):
        from datasets.distributed import split_dataset_by_node  # type: ignore[import-untyped]

        return iter(split_dataset_by_node(dataset, worker, workers))
    return itertools.islice(iter(dataset), worker, None, workers)


def _batches(loader: Callable[[], DataLoader[Any]]) -> Iterator[Batch]:
    try:
        for batch in loader():
            yield sound(batch)
    except PsnodeError:
        raise
    except Exception as error:
        raise explained(error) from error


def _steps(batches: Callable[[], Iterator[Batch]], count: int) -> Iterator[list[Batch]]:
    made = batches()
    while step := list(itertools.islice(made, count)):
        yield step


def _making(given: Any, config: Config, lock: AbstractContextManager[Any], method: str) -> Making:
    making = Making(config.batch_size, processes=config.data_workers, seed=config.seed, lock=lock)
    if not isinstance(given, DataLoader):
        return making
    if given.batch_size not in (1, config.batch_size) and method == "train_data":
        raise ConfigurationError(
            f"Task.{method} returned a DataLoader with batch_size={given.batch_size}, and --batch-size is {config.batch_size}: "
            "leave its own out, and any batch_sampler"
        )
    drawn = isinstance(given.dataset, IterableDataset) or type(given.sampler) in (RandomSampler, SequentialSampler)
    if not drawn or getattr(given.sampler, "replacement", False):
        raise ConfigurationError(
            f"Task.{method} returned a DataLoader with a sampler of its own, and psnode deals the examples: leave it out"
        )
    processes = config.data_workers or given.num_workers
    settings = {"timeout": given.timeout, "pin_memory": given.pin_memory}
    if processes and given.prefetch_factor is not None:
        settings["prefetch_factor"] = given.prefetch_factor
    if processes and given.multiprocessing_context is not None:
        settings["multiprocessing_context"] = given.multiprocessing_context
    return making._replace(collate=given.collate_fn, processes=processes, begin=given.worker_init_fn, settings=settings)


def _examples_of(dataset: Any, config: Config, workers: int, steps: int | None) -> int:
    """Return the number of examples in an epoch of an iterable data set."""
    if steps is not None:
        return steps * workers * config.batch_size * config.batches_per_step
    try:
        return len(dataset)
    except TypeError:
        raise ConfigurationError(
            f"{_named(dataset)} has no length, which defines an epoch: give it __len__, or the task steps_per_epoch = N"
        ) from None


def _length(dataset: Any, method: str) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError, AttributeError):
        raise ConfigurationError(
            f"Task.{method} returned {_named(dataset)} without __len__: define it, or make the data set an IterableDataset"
        ) from None


def _is_hugging_face(dataset: Any) -> bool:
    return type(dataset).__module__.startswith(_HUGGING_FACE)


def _named(thing: Any) -> str:
    """Return text like `a Points (points.py:12)`: the class of `thing`, and the place of its definition if known."""
    try:
        where = f" ({Path(inspect.getsourcefile(type(thing)) or '').name}:{inspect.getsourcelines(type(thing))[1]})"
    except (TypeError, OSError):
        where = ""
    return f"a {type(thing).__name__}{where}"
