"""Examples of a worker at a step: pure functions of the seed, so that no state needs to be remembered.

In every epoch the examples are permuted again. With P workers and batches of B, micro-batch m of the epoch is the m-th run of P*B
entries of the permutation, and worker r in 0..P-1 takes the r-th B of them: perm[(mP+r)B : (mP+r+1)B]. A step takes k consecutive
micro-batches (gradient accumulation); a rest that does not fill a whole step is left out of that epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from psnode.errors import ConfigurationError

Indices = npt.NDArray[np.int64]

# Words that separate the streams of random numbers.
_SHUFFLE = int.from_bytes(b"shuf", "big")
_OUTSIDE = int.from_bytes(b"outs", "big")
_AUGMENT = int.from_bytes(b"augm", "big")


def permutation(length: int, seed: int, epoch: int) -> Indices:
    """Return the order of 0..length-1 in `epoch`, int64."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, _SHUFFLE, epoch))))
    return generator.permutation(length)


def augmentation(seed: int, worker: int, micro: int) -> np.random.Generator:
    """Return the generator for the augmentation of micro-batch `micro` (counted over all epochs) at `worker`.

    `micro` is below 0 if the worker that continues a share is epochs behind those to which it was dealt.
    """
    return np.random.default_rng(np.random.SeedSequence((seed, _AUGMENT, worker, micro % 2**64)))


class Wanted(NamedTuple):
    """One micro-batch to make: its examples, and the generator for their augmentation."""

    indices: Indices
    rng: np.random.Generator


@dataclass(frozen=True)
class Sampler:
    """The share of `worker` (0..workers-1) in `length` examples, `batches_per_step` micro-batches of `batch` per step.

    `epoch_offset` is added to a step before its place in an epoch is looked up (psnode.records.generations).

    Raises ConfigurationError if the examples are fewer than all workers take in one step.
    """

    length: int
    worker: int
    workers: int
    batch: int
    batches_per_step: int = 1
    seed: int = 0
    epoch_offset: int = 0

    def __post_init__(self) -> None:
        taken = self.workers * self.batch * self.batches_per_step
        if self.length < taken:
            raise ConfigurationError(
                f"{self.length} training examples are fewer than one step takes ({self.workers} workers x --batch-size "
                f"{self.batch} x --batches-per-step {self.batches_per_step} = {taken}): lower one of these"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Whole steps in an epoch, at least 1."""
        return self.length // (self.workers * self.batch * self.batches_per_step)

    def dealt(self, rank: int, ranks: Sequence[int], epoch_offset: int) -> Sampler:
        """Return the share of `rank` if the examples are dealt among `ranks`, in this order.

        A rank outside `ranks` draws from permutations of its own, which do not affect the others' examples.
        """
        if rank in ranks:
            return replace(self, worker=ranks.index(rank), workers=len(ranks), epoch_offset=epoch_offset)
        seed = int(np.random.SeedSequence((self.seed, _OUTSIDE, rank)).generate_state(1)[0])
        return replace(self, worker=0, workers=len(ranks), epoch_offset=epoch_offset, seed=seed)

    def finished(self, place: int, workers: int) -> int:
        """Return the step after which this share continues if one among `workers` had reached `place`, a step plus its offset.

        It continues the same epoch, with the next whole step.
        """
        epoch, within = divmod(place, self.length // (workers * self.batch * self.batches_per_step))
        here = min(-(-within * workers // self.workers), self.steps_per_epoch)
        return epoch * self.steps_per_epoch + here - self.epoch_offset

    def locate(self, step: int) -> tuple[int, int]:
        """Return (epoch, step within it), both from 0, of step `step`, which counts from 1 over all epochs."""
        return divmod(step - 1 + self.epoch_offset, self.steps_per_epoch)

    def indices(self, step: int) -> list[Indices]:
        """Return the `batches_per_step` index arrays, each (batch,), of step `step`. Permutes again at each call."""
        epoch, within = self.locate(step)
        return self._share(permutation(self.length, self.seed, epoch), within)

    def wanted(self, first: int, last: int) -> Iterator[list[Wanted]]:
        """Yield the micro-batches of steps `first` to `last`, both included: one list per step."""
        current, order = -1, np.empty(0, np.int64)
        for step in range(first, last + 1):
            epoch, within = self.locate(step)
            if epoch != current:
                current, order = epoch, permutation(self.length, self.seed, epoch)
            number = (step - 1) * self.batches_per_step
            shares = enumerate(self._share(order, within))
            yield [Wanted(indices, augmentation(self.seed, self.worker, number + i)) for i, indices in shares]

    def _share(self, order: Indices, within: int) -> list[Indices]:
        micros = range(within * self.batches_per_step, (within + 1) * self.batches_per_step)
        starts = ((micro * self.workers + self.worker) * self.batch for micro in micros)
        return [order[start : start + self.batch] for start in starts]
