"""The examples of a worker at a step. They follow from the seed, the step and the worker's share, without other state.

Every epoch permutes the examples anew. With P workers and batches of B, micro-batch m of the epoch takes the m-th run of P*B
entries of the permutation, of which worker r in 0..P-1 takes the r-th B entries: perm[(mP+r)B : (mP+r+1)B]. A step takes k
consecutive micro-batches (gradient accumulation). Remaining examples that do not fill a whole step are not used in the
epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from psnode.errors import ConfigurationError

Indices = npt.NDArray[np.int64]

# Numbers that give each purpose its own stream of random numbers.
_SHUFFLE = int.from_bytes(b"shuf", "big")
_OUTSIDE = int.from_bytes(b"outs", "big")
_AUGMENT = int.from_bytes(b"augm", "big")


def permutation(length: int, seed: int, epoch: int) -> Indices:
    """Return the order of the examples 0..length-1 in `epoch`, int64."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, _SHUFFLE, epoch))))
    return generator.permutation(length)


def augmentation(seed: int, worker: int, micro: int) -> np.random.Generator:
    """Return the generator for the augmentation of micro-batch `micro` (counted over all epochs) at `worker`.

    `micro` can be negative: a worker that takes over a share of the data may be in an earlier epoch than the other workers.
    """
    return np.random.default_rng(np.random.SeedSequence((seed, _AUGMENT, worker, micro % 2**64)))


class MicroBatchRequest(NamedTuple):
    """A micro-batch to make: the indices of its examples, and the generator for their augmentation."""

    indices: Indices
    rng: np.random.Generator


@dataclass(frozen=True)
class Sampler:
    """The share of one worker in a data set: the indices of its examples at each step.

    `worker` (0..workers-1) takes its share of `length` examples, in steps of `batches_per_step` micro-batches of `batch`
    examples. `sample_offset` is added to a step to find its position in an epoch (psnode.records.generations). Raises
    ConfigurationError if there are fewer examples than all workers take in one step.
    """

    length: int
    worker: int
    workers: int
    batch: int
    batches_per_step: int = 1
    seed: int = 0
    sample_offset: int = 0

    def __post_init__(self) -> None:
        taken = self.workers * self.batch * self.batches_per_step
        if self.length < taken:
            raise ConfigurationError(
                f"{self.length} training examples are fewer than one step takes ({self.workers} workers x --batch-size "
                f"{self.batch} x --batches-per-step {self.batches_per_step} = {taken}): lower one of these"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of whole steps in an epoch, at least 1."""
        return self.length // (self.workers * self.batch * self.batches_per_step)

    def dealt(self, rank: int, ranks: Sequence[int], sample_offset: int) -> Sampler:
        """Return the share of `rank` when the examples are dealt among `ranks`, in this order.

        A rank that is not in `ranks` draws from permutations of its own, which do not affect the examples of other ranks.
        """
        if rank in ranks:
            return replace(self, worker=ranks.index(rank), workers=len(ranks), sample_offset=sample_offset)
        seed = int(np.random.SeedSequence((self.seed, _OUTSIDE, rank)).generate_state(1)[0])
        return replace(self, worker=0, workers=len(ranks), sample_offset=sample_offset, seed=seed)

    def finished(self, place: int, workers: int) -> int:
        """Return the step after which a worker that changes to this share continues. It had one of `workers` shares before.

        `place` is the step, offset included, that the worker had reached in the earlier share. The epoch continues with the
        next whole step.
        """
        epoch, within = divmod(place, self.length // (workers * self.batch * self.batches_per_step))
        here = min(-(-within * workers // self.workers), self.steps_per_epoch)
        return epoch * self.steps_per_epoch + here - self.sample_offset

    def locate(self, step: int) -> tuple[int, int]:
        """Return the epoch of `step` and the step within the epoch, both from 0. `step` counts from 1 over all epochs."""
        return divmod(step - 1 + self.sample_offset, self.steps_per_epoch)

    def indices(self, step: int) -> list[Indices]:
        """Return the `batches_per_step` index arrays, each (batch,), of `step`. Each call computes the permutation again."""
        epoch, within = self.locate(step)
        return self._share(permutation(self.length, self.seed, epoch), within)

    def wanted(self, first: int, last: int) -> Iterator[list[MicroBatchRequest]]:
        """Yield the micro-batches of steps `first` to `last`, both included: one list per step."""
        current, order = -1, np.empty(0, np.int64)
        for step in range(first, last + 1):
            epoch, within = self.locate(step)
            if epoch != current:
                current, order = epoch, permutation(self.length, self.seed, epoch)
            number = (step - 1) * self.batches_per_step
            shares = enumerate(self._share(order, within))
            yield [MicroBatchRequest(indices, augmentation(self.seed, self.worker, number + i)) for i, indices in shares]

    def _share(self, order: Indices, within: int) -> list[Indices]:
        micros = range(within * self.batches_per_step, (within + 1) * self.batches_per_step)
        starts = ((micro * self.workers + self.worker) * self.batch for micro in micros)
        return [order[start : start + self.batch] for start in starts]
