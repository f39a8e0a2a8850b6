"""Among whom the examples of an epoch are dealt, and how that changes when workers have gone or come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from psnode.config import Config
from psnode.config.schedules import OwnRate, Schedule, learning_rate
from psnode.exchange.shard.consistency import Rule, gradients_a_round
from psnode.protocol.messages import Reshard
from psnode.records.checkpoint import Checkpoint
from psnode.records.generations import Generation, epoch_offset

_REMEMBERED = 1 << 14  # versions; no gradient is older, but after hours of silence
_NEVER = 1 << 53


class Epochs(NamedTuple):
    """Number of steps of an epoch, and the offsets of psnode.records.generations: for schedules, and for the data of a worker."""

    steps: int
    epoch_offset: int
    sample_offset: int


def epochs_of(config: Config, parts: Sequence[Generation], examples: int) -> Epochs:
    """Epochs of a run whose last part begins now."""

    def taken(workers: int) -> int:
        return gradients_a_round(config, workers) * config.batch_size * config.batches_per_step

    def sampled(workers: int) -> int:
        return workers * config.batch_size * config.batches_per_step

    return Epochs(
        examples // taken(parts[-1].workers), epoch_offset(parts, examples, taken), epoch_offset(parts, examples, sampled)
    )


class Applied:
    """Counts gradients, each when the first of its groups is applied. `newest`: of every rank, the last step that was counted."""

    def __init__(self, gradients: int = 0, newest: Mapping[int, int] | None = None) -> None:
        self.gradients = gradients
        self._newest = dict(newest or {})

    def add(self, contributors: Iterable[tuple[int, int]]) -> None:
        """A version was made of gradients of `contributors`, each a rank and a step of its own."""
        for rank, step in sorted(contributors):
            if step > self._newest.get(rank, 0):
                self._newest[rank] = step
                self.gradients += 1

    def facts(self) -> dict[str, Any]:
        """Entries of a checkpoint's manifest."""
        return {"applied": {"gradients": self.gradients, "newest": {str(rank): step for rank, step in self._newest.items()}}}


def applied_before(rule: Rule, found: Checkpoint | None) -> Applied | None:
    """The gradients that the run has applied so far. None where every version stands for the same number.

    So do those of a run under ssp or asp whose checkpoint does not say it, since it was begun before they were counted.
    """
    if not rule.patient:
        return None
    if found is None:
        return Applied()
    facts = found.facts.get("applied")
    if facts is None:
        return None
    return Applied(int(facts["gradients"]), {int(rank): int(step) for rank, step in facts["newest"].items()})


class Sharding:
    """The shares of the run's last part: those of `ranks`, in this order, of `examples`.

    `own_rate`: the task's schedule; `steps`: those of an epoch, where the data are no examples to deal. `parts` of the run, where
    its `epochs` stand by them, and the learning rate's `schedule`.

    Where a version may stand for any number of gradients, epochs stand by those that were `applied`, from the start of the run
    on: all epochs are then counted in gradients, and the offset is the number that versions lack.

    Shares are resharded only where an epoch ends: a worker that goes within one takes the rest of its share along, and
    one that comes has none before the next.
    """

    def __init__(
        self,
        config: Config,
        examples: int,
        ranks: Iterable[int],
        parts: Sequence[Generation],
        applied: Applied | None = None,
        version: int = 0,
        own_rate: OwnRate | None = None,
        steps: int | None = None,
    ) -> None:
        self._config, self._own_rate, self._steps = config, own_rate, steps
        self._examples = examples
        self.ranks = tuple(ranks)
        self._rates: dict[int, float] = {}  # by version
        self.applied = applied
        self._version = version
        self._epoch = 0
        self._take(parts)
        self._epoch = self._over

    def rate(self, version: int) -> float:
        """The learning rate of gradients computed on `version`: the schedule's when that was new, whatever it is by now."""
        found = self._rates.setdefault(version, self.schedule(version))
        self._rates.pop(version - _REMEMBERED, None)
        return found

    def _take(self, parts: Sequence[Generation]) -> None:
        self.parts = tuple(parts)
        self.epochs = epochs_of(self._config, self.parts, self._examples)
        if self.applied is None and self._steps is not None:
            self.epochs = Epochs(self._steps, 0, self.epochs.sample_offset)
        if self.applied is not None:
            gradients = self._examples // (self._config.batch_size * self._config.batches_per_step)
            self.epochs = Epochs(gradients, self.applied.gradients - self._version, self.epochs.sample_offset)
        self.schedule = self.schedule_of(self._config)

    def schedule_of(self, config: Config) -> Schedule:
        """The learning rate by the settings of `config`, in epochs as they are here."""
        return learning_rate(config, self.epochs.steps, self.epochs.epoch_offset, self._own_rate)

    def count(self, version: int, contributors: Iterable[tuple[int, int]]) -> None:
        """`version` is complete, by the gradients of `contributors`, each a rank and a step of its own."""
        self._epoch, self._version = self._over, version
        if self.applied is not None:
            self.applied.add(contributors)
            self._take(self.parts)

    @property
    def _over(self) -> int:
        """Number of finished epochs."""
        return (self._version + self.epochs.epoch_offset) // self.epochs.steps

    def ends(self, version: int) -> bool:
        """True if an epoch ends with `version`, which is complete."""
        if self.applied is not None:
            return self._over > self._epoch
        return (version + self.epochs.epoch_offset) % self.epochs.steps == 0

    @property
    def last_step(self) -> int:
        """The step after which this start of the run ends."""
        return self._config.last_step(self.epochs.steps, self.epochs.epoch_offset)

    @property
    def is_whole(self) -> bool:
        """True if the run is complete after the last step."""
        return self.last_step == self._config.total_steps(self.epochs.steps, self.epochs.epoch_offset)

    @property
    def deal(self) -> Reshard:
        """The message to the workers."""
        steps, epoch_offset, sample_offset = self.epochs
        return Reshard(list(self.ranks), steps, epoch_offset, sample_offset, self.last_of_workers)

    @property
    def last_of_workers(self) -> int:
        """A step after which no worker has anything to do. Where gradients are counted, only the master knows the last."""
        if self.applied is None:
            return self.last_step
        return self._config.stop_after or self._config.max_steps or _NEVER

    def hand_over(self, rank: int, live: Iterable[int]) -> int:
        """`rank` gets the share of a worker that is not `live` any more; returns that worker's rank."""
        place = next(index for index, owner in enumerate(self.ranks) if owner not in live)
        former = self.ranks[place]
        self.ranks = (*self.ranks[:place], rank, *self.ranks[place + 1 :])
        return former

    def renew(self, version: int, live: Iterable[int]) -> bool:
        """Deal among `live` if `version` ends an epoch that was dealt among others; whether that was so."""
        ranks = tuple(sorted(live))
        if not self.ends(version) or not ranks or set(ranks) == set(self.ranks):
            return False
        if len(ranks) != len(self.ranks):
            self._take([*self.parts, Generation(version, len(ranks))])
        self.ranks = ranks
        return True
