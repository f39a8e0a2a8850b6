"""Examples that a worker takes at a step: pure functions of the seed, so that nothing needs to be remembered.

In every epoch the examples are permuted anew. With P workers and batches of B, micro-batch m of the epoch is the m-th
run of P*B entries of the permutation, and worker r in 0..P-1 takes the r-th B of them: perm[(mP+r)B : (mP+r+1)B]. A
step takes k consecutive micro-batches (gradient accumulation); a rest that does not fill a whole step is left out of that
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

# Words that keep the streams of random numbers apart.
_SHUFFLE = int.from_bytes(b"shuf", "big")
_OUTSIDE = int.from_bytes(b"outs", "big")
_AUGMENT = int.from_bytes(b"augm", "big")


def permutation(length: int, seed: int, epoch: int) -> Indices:
    """The order of 0..length-1 in `epoch`, int64."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, _SHUFFLE, epoch))))
    return generator.permutation(length)


def augmentation(seed: int, worker: int, micro: int) -> np.random.Generator:
    """The generator for the augmentation of micro-batch `micro` (counted over all epochs) at `worker`.

    `micro` is below 0 where a share goes on whose worker is epochs behind those that were dealt it.
    """
    return np.random.default_rng(np.random.SeedSequence((seed, _AUGMENT, worker, micro % 2**64)))


class Wanted(NamedTuple):
    """One micro-batch to make: which examples, and the generator for their augmentation."""

    indices: Indices
    rng: np.random.Generator


@dataclass(frozen=True)
class Sampler:
    """The share of `worker` (0..workers-1) in `length` examples, `batches_per_step` micro-batches of `batch` a step.

    `shift` is added to a step before its place in an epoch is looked up (psnode.records.generations).

    ConfigurationError if the examples are fewer than all workers take in one step.
    """

    length: int
    worker: int
    workers: int
    batch: int
    batches_per_step: int = 1
    seed: int = 0
    shift: int = 0

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

    def dealt(self, rank: int, ranks: Sequence[int], shift: int) -> Sampler:
        """The share of `rank` where the examples are dealt among `ranks`, in this order.

        Who is not among them draws from permutations of its own, which leave no example of the others' out.
        """
        if rank in ranks:
            return replace(self, worker=ranks.index(rank), workers=len(ranks), shift=shift)
        seed = int(np.random.SeedSequence((self.seed, _OUTSIDE, rank)).generate_state(1)[0])
        return replace(self, worker=0, workers=len(ranks), shift=shift, seed=seed)

    def finished(self, place: int, workers: int) -> int:
        """The step behind which this share goes on where one among `workers` had come to `place`, a step with its shift.

        The same epoch goes on, with the next whole step.
        """
        epoch, within = divmod(place, self.length // (workers * self.batch * self.batches_per_step))
        here = min(-(-within * workers // self.workers), self.steps_per_epoch)
        return epoch * self.steps_per_epoch + here - self.shift

    def locate(self, step: int) -> tuple[int, int]:
        """(epoch, step within it), both from 0, of step `step`, which counts from 1 over all epochs."""
        return divmod(step - 1 + self.shift, self.steps_per_epoch)

    def indices(self, step: int) -> list[Indices]:
        """The `batches_per_step` index arrays, each (batch,), of step `step`. Permutes anew at each call."""
        epoch, within = self.locate(step)
        return self._share(permutation(self.length, self.seed, epoch), within)

    def wanted(self, first: int, last: int) -> Iterator[list[Wanted]]:
        """The micro-batches of steps `first` to `last`, both included: one list a step."""
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
