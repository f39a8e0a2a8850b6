"""Among whom the examples of an epoch are dealt, and how that changes when workers have gone or come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psnode.config import Config
from psnode.master.startup import epochs_of
from psnode.messages import Deal
from psnode.parts import Part
from psnode.schedules import learning_rate

_REMEMBERED = 1 << 14  # versions; no gradient is older, but after hours of silence


class Dealing:
    """The shares of the run's last part: those of `ranks`, in this order, of `examples`.

    `parts` of the run, where its `epochs` stand by them, and the learning rate's `schedule`.

    Shares are dealt anew only where an epoch ends: whoever goes within one takes the rest of its share along, and whoever
    comes has none before the next.
    """

    def __init__(self, config: Config, examples: int, ranks: Iterable[int], parts: Sequence[Part]) -> None:
        self._config = config
        self._examples = examples
        self.ranks = tuple(ranks)
        self._rates: dict[int, float] = {}  # by version
        self._take(parts)

    def rate(self, version: int) -> float:
        """The learning rate of gradients computed on `version`: the schedule's when that was new, whatever it is by now."""
        found = self._rates.setdefault(version, self.schedule(version))
        self._rates.pop(version - _REMEMBERED, None)
        return found

    def _take(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.epochs = epochs_of(self._config, self.parts, self._examples)
        self.schedule = learning_rate(self._config, self.epochs.steps, self.epochs.shift)

    @property
    def last_step(self) -> int:
        """The step after which the run is complete."""
        return self._config.total_steps(self.epochs.steps, self.epochs.shift)

    @property
    def deal(self) -> Deal:
        """What workers have to know of it."""
        steps, shift, sample_shift = self.epochs
        return Deal(list(self.ranks), steps, shift, sample_shift, self.last_step)

    def hand_over(self, rank: int, live: Iterable[int]) -> int:
        """`rank` gets the share of somebody who is not `live` any more: of whom."""
        place = next(index for index, owner in enumerate(self.ranks) if owner not in live)
        former = self.ranks[place]
        self.ranks = (*self.ranks[:place], rank, *self.ranks[place + 1 :])
        return former

    def renew(self, version: int, live: Iterable[int]) -> bool:
        """Deal among `live` if `version` ends an epoch that was dealt among others; whether that was so."""
        ranks = tuple(sorted(live))
        ends = (version + self.epochs.shift) % self.epochs.steps == 0
        if not ends or not ranks or set(ranks) == set(self.ranks):
            return False
        if len(ranks) != len(self.ranks):
            self._take([*self.parts, Part(version, len(ranks))])
        self.ranks = ranks
        return True
