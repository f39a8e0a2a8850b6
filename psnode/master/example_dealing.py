"""The division of the examples of an epoch among workers, and its changes when workers leave or join."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from psnode.config import Config
from psnode.config.schedules import OwnRate, Schedule, learning_rate
from psnode.exchange.shard.consistency import Rule, examples_a_round
from psnode.protocol.messages import Reshard
from psnode.protocol.round import Round
from psnode.records.checkpoint import Checkpoint
from psnode.records.generations import Generation, epoch_offset

_REMEMBERED = 1 << 14  # versions whose learning rate is kept; only a worker silent for hours sends an older gradient
_NEVER = 1 << 53  # a step that no run reaches


class Epochs(NamedTuple):
    """The steps of an epoch, and two offsets that are added to a step's number to find its position in the epochs.

    `epoch_offset` is for learning-rate schedules, `sample_offset` for the data of a worker (psnode.records.generations).
    """

    steps: int
    epoch_offset: int
    sample_offset: int


def epochs_of(config: Config, parts: Sequence[Generation], examples: int) -> Epochs:
    """Return the epochs of a run whose last part begins now.

    `parts`: all parts of the run, each with its number of workers; the last part is the new one. `examples`: the size of the
    data set.
    """

    def taken(workers: int) -> int:
        return examples_a_round(config, workers)

    def sampled(workers: int) -> int:
        return workers * config.batch_size * config.batches_per_step

    return Epochs(
        examples // taken(parts[-1].workers), epoch_offset(parts, examples, taken), epoch_offset(parts, examples, sampled)
    )


class Applied:
    """Counts the gradients applied so far. Each gradient counts once, when its first group is applied.

    `newest`: by rank, the last step of that rank whose gradient was counted.
    """

    def __init__(self, gradients: int = 0, newest: Mapping[int, int] | None = None) -> None:
        self.gradients = gradients
        self._newest = dict(newest or {})

    def add(self, contributors: Iterable[tuple[int, int]]) -> None:
        """Count the gradients in a new version. `contributors`: pairs of a rank and that rank's step."""
        for rank, step in sorted(contributors):
            if step > self._newest.get(rank, 0):
                self._newest[rank] = step
                self.gradients += 1

    def facts(self) -> dict[str, Any]:
        """Return the entries for a checkpoint's manifest."""
        return {"applied": {"gradients": self.gradients, "newest": {str(rank): step for rank, step in self._newest.items()}}}


def applied_before(rule: Rule, found: Checkpoint | None) -> Applied | None:
    """Return the counter of the gradients that the run has applied, or None if the run counts versions instead.

    Only runs under ssp and asp count gradients, since their versions may consist of any number of gradients. If the
    checkpoint of such a run was written by an older psnode and has no count, versions are counted in this run too.
    """
    if not rule.patient:
        return None
    if found is None:
        return Applied()
    facts = found.facts.get("applied")
    if facts is None:
        return None
    return Applied(int(facts["gradients"]), {int(rank): int(step) for rank, step in facts["newest"].items()})


class ExampleDealing:
    """The shares of `examples` examples among `ranks`, and the epochs and learning-rate `schedule` that follow from the shares.

    `parts`: the parts of the run, each with its number of workers. `finished`: the steps of the run so far. `own_rate`: the
    task's schedule. `steps`: the steps of an epoch if the task sets them.

    If a version may consist of any number of gradients, `applied` counts the gradients from the start of the run. Epochs are
    then measured in gradients, and `epoch_offset` is the number of gradients minus the number of finished steps.

    Examples are resharded only at the end of an epoch. If a worker leaves within an epoch, the rest of its share is skipped,
    unless the worker returns or a spare takes over the share. If a spare has taken over the share of a worker that returns, the
    worker has no share before the next epoch.
    """

    def __init__(
        self,
        config: Config,
        examples: int,
        ranks: Iterable[int],
        parts: Sequence[Generation],
        applied: Applied | None = None,
        finished: int = 0,
        own_rate: OwnRate | None = None,
        steps: int | None = None,
    ) -> None:
        self._config, self._own_rate, self._steps = config, own_rate, steps
        self._examples = examples
        self.ranks = tuple(ranks)
        self._rates: dict[int, float] = {}  # learning rates by version
        self.applied = applied
        self._finished = finished
        self._epoch = 0
        self._take(parts)
        self._epoch = self._over

    def rate(self, of: Round) -> float:
        """Return the learning rate of a round's gradients, which is fixed at the first call for the round's version."""
        found = self._rates.setdefault(of.version, self.schedule(of.finished))
        self._rates.pop(of.version - _REMEMBERED, None)
        return found

    def _take(self, parts: Sequence[Generation]) -> None:
        self.parts = tuple(parts)
        self.epochs = epochs_of(self._config, self.parts, self._examples)
        if self.applied is None and self._steps is not None:
            self.epochs = Epochs(self._steps, 0, self.epochs.sample_offset)
        if self.applied is not None:
            gradients = self._examples // (self._config.batch_size * self._config.batches_per_step)
            self.epochs = Epochs(gradients, self.applied.gradients - self._finished, self.epochs.sample_offset)
        self.schedule = self.schedule_of(self._config)

    def schedule_of(self, config: Config) -> Schedule:
        """Return the learning-rate schedule of `config`, with the epochs of this run."""
        return learning_rate(config, self.epochs.steps, self.epochs.epoch_offset, self._own_rate)

    def count(self, finished: int, contributors: Iterable[tuple[int, int]]) -> None:
        """Count step `finished`, the newest step of the run.

        `contributors`: the gradients in this step, as pairs of a rank and that rank's own step.
        """
        self._epoch, self._finished = self._over, finished
        if self.applied is not None:
            self.applied.add(contributors)
            self._take(self.parts)

    @property
    def _over(self) -> int:
        """The number of finished epochs."""
        return (self._finished + self.epochs.epoch_offset) // self.epochs.steps

    def ends(self, finished: int) -> bool:
        """Return True if an epoch ends after `finished` steps, all of which have been counted."""
        if self.applied is not None:
            return self._over > self._epoch
        return (finished + self.epochs.epoch_offset) % self.epochs.steps == 0

    @property
    def last_step(self) -> int:
        """The step after which this job ends, which may be before the end of the run."""
        return self._config.last_step(self.epochs.steps, self.epochs.epoch_offset)

    @property
    def is_whole(self) -> bool:
        """True if the run is complete after the last step."""
        return self.last_step == self._config.total_steps(self.epochs.steps, self.epochs.epoch_offset)

    @property
    def deal(self) -> Reshard:
        """The RESHARD message, which tells workers the present shares of the examples and the epochs."""
        steps, epoch_offset, sample_offset = self.epochs
        return Reshard(list(self.ranks), steps, epoch_offset, sample_offset, self.last_of_workers)

    @property
    def last_of_workers(self) -> int:
        """The last step as sent to workers.

        If gradients are counted, this is an upper bound, since only the master counts them.
        """
        if self.applied is None:
            return self.last_step
        return self._config.stop_after or self._config.max_steps or _NEVER

    def hand_over(self, rank: int, live: Iterable[int]) -> int:
        """Give `rank` the share of a worker that is not in `live` any more, and return the rank of that worker."""
        place = next(index for index, owner in enumerate(self.ranks) if owner not in live)
        former = self.ranks[place]
        self.ranks = (*self.ranks[:place], rank, *self.ranks[place + 1 :])
        return former

    def renew(self, finished: int, live: Iterable[int]) -> bool:
        """Divide the examples among `live` if an epoch ends after `finished` steps and the shares belong to another set of ranks.

        Returns True if the examples were divided anew.
        """
        ranks = tuple(sorted(live))
        if not self.ends(finished) or not ranks or set(ranks) == set(self.ranks):
            return False
        if len(ranks) != len(self.ranks):
            self._take([*self.parts, Generation(finished, len(ranks))])
        self.ranks = ranks
        return True
