"""A program's own torch DataLoader, or any iterable of batches, as the data of a worker."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from psnode.errors import ConfigurationError
from psnode.task import Batch
from psnode.tasks.data.processes import Begin, make_place
from psnode.tasks.data.sampler import Sampler


class Drawn(NamedTuple):
    """The indices of a batch's examples, and the seed of its random numbers."""

    indices: list[int]
    seed: int | None  # if None, no generator is seeded


class _Seeded(torch.utils.data.Dataset[Any]):
    """A data set whose items are whole batches of `dataset`.

    The generators are seeded for each batch, so that a batch does not depend on the process that makes it.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, drawn: Drawn) -> Sequence[Any]:
        found: Sequence[Any] = examples_of(self._dataset, drawn)
        return found


def examples_of(dataset: Any, drawn: Drawn) -> Any:
    """Return the examples of a batch, after seeding the generators if the batch has a seed."""
    if drawn.seed is not None:
        seed_all(drawn.seed)
    together = getattr(dataset, "__getitems__", None)
    return together(drawn.indices) if together is not None else [dataset[index] for index in drawn.indices]


def seed_all(seed: int) -> None:
    """Seed the generators of torch (on the CPU), Python and NumPy."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


class Dealt:
    """The examples of a map-style `loader`, dealt among the workers. The loader's collate function and processes are used.

    Raises ConfigurationError for a loader that does not draw its examples at random without replacement.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        if loader.batch_size is None or not _shuffles(loader):
            raise ConfigurationError(
                "the loader has a sampler of its own or does not shuffle, and psnode deals the examples at random among the "
                "workers: give DataLoader(dataset, batch_size=N, shuffle=True), or an iterable of each worker's own batches"
            )
        self.loader = loader
        self.batch_size = loader.batch_size

    def __len__(self) -> int:
        return len(self.loader.dataset)  # type: ignore[arg-type]  # a map-style data set has a length

    def batch(self, indices: Any, rng: np.random.Generator | None) -> Batch:
        """Return the examples at `indices`, collated."""
        collate = self.loader.collate_fn
        return collate([self.loader.dataset[int(index)] for index in indices])

    def feed(self, sampler: Sampler, finished: int, last: int) -> _Feed:
        """Return the batches of the steps after `finished` up to and including `last`, as dealt by `sampler`."""
        loader, processes = self.loader, self.loader.num_workers > 0
        if processes:
            make_place()
        copy = DataLoader(
            _Seeded(loader.dataset),
            batch_sampler=draw(sampler, finished, last),  # type: ignore[arg-type]  # any iterable will do
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=Begin(loader.worker_init_fn) if processes else None,
            multiprocessing_context=loader.multiprocessing_context if processes else None,
            prefetch_factor=loader.prefetch_factor if processes else None,
        )
        return _Feed(iter(copy), sampler.batches_per_step)


class Streamed:
    """The batches of `source` on this rank. When the source ends, it starts again. `examples`: nominal number of examples."""

    def __init__(self, source: Iterable[Batch], examples: int) -> None:
        self._examples = examples
        self._batches = _endless(source)

    def __len__(self) -> int:
        return self._examples

    def batch(self, indices: Any, rng: np.random.Generator | None) -> Batch:
        """Return the next batch, regardless of the indices."""
        return next(self._batches)

    def feed(self, sampler: Sampler, finished: int, last: int) -> _Feed:
        """Return the coming batches."""
        return _Feed(self._batches, sampler.batches_per_step)


class _Feed:
    """Iterator over the steps, each of which is a list of `count` batches from `batches`."""

    def __init__(self, batches: Iterator[Batch], count: int) -> None:
        self._batches, self._count = batches, count

    def __next__(self) -> list[Batch]:
        found = list(itertools.islice(self._batches, self._count))
        if len(found) < self._count:
            raise ConfigurationError("s.batches has no more batches: the iterable yielded nothing when it was started again")
        return found

    def close(self) -> None:
        """Release the loader, which ends its processes."""
        self._batches = iter(())


def is_map_style(loader: object) -> TypeGuard[DataLoader[Any]]:
    """Return True for a DataLoader whose examples have indices."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def length_of(loader: Iterable[Batch]) -> int:
    """Return the number of batches of an iterable. Raises ConfigurationError if it has no length."""
    try:
        found = len(loader)  # type: ignore[arg-type]  # the question
    except TypeError:
        raise ConfigurationError(
            "the iterable has no length, which defines an epoch: write s.batches(iterable, steps_per_epoch=N)"
        ) from None
    if not found:
        raise ConfigurationError("the iterable has no batches: its length is 0")
    return found


def steps_in(loader: Iterable[Batch], batches_per_step: int, stated: int | None) -> int:
    """Return the steps in an epoch of an iterable: `stated` if given, otherwise computed from the length of the iterable.

    Raises ConfigurationError if `stated` is invalid, or if it is None and the iterable has no length or too few batches.
    """
    if stated is not None:
        if isinstance(stated, bool) or not isinstance(stated, int) or stated < 1:
            raise ConfigurationError(f"steps_per_epoch must be a whole number of at least 1, not {stated!r}")
        return stated
    if not (found := length_of(loader) // batches_per_step):
        raise ConfigurationError(
            f"the iterable has fewer batches ({length_of(loader)}) than batches_per_step ({batches_per_step})"
        )
    return found


def _shuffles(loader: DataLoader[Any]) -> bool:
    plain = type(loader.batch_sampler) is torch.utils.data.BatchSampler
    sampler = loader.sampler
    return plain and type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == len(sampler.data_source)


def draw(sampler: Sampler, finished: int, last: int) -> Iterator[Drawn]:
    """Yield the batches of the steps after `finished` up to and including `last`."""
    for step in sampler.wanted(finished + 1, last):
        for indices, rng in step:
            yield Drawn(indices.tolist(), int(rng.integers(2**63)))


def _endless(source: Iterable[Batch]) -> Iterator[Batch]:
    while True:
        empty = True
        for batch in source:
            empty = False
            yield batch
        if empty:
            return
