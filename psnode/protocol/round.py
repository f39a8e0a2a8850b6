"""A round of a run: the steps that all workers take on one version of the weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Round:
    """The round in which every worker takes `steps` steps on the weights of `version`, and sends one gradient.

    `version` is the number of finished rounds; `first_step` counts from 1. Frames identify the round by its last step and its
    version (docs/wire-format.md).
    """

    version: int
    first_step: int
    steps: int = 1

    @classmethod
    def after(cls, version: int, steps: int = 1) -> Round:
        """Return the round that begins after `version` finished rounds, in a run whose rounds have `steps` steps each."""
        return cls(version, version * steps + 1, steps)

    def at(self, version: int) -> Round:
        """Return the round on the weights of `version`, for a run in which all rounds have as many steps as this round."""
        return Round(version, self.first_step + (version - self.version) * self.steps, self.steps)

    @property
    def following(self) -> Round:
        """The next round, on the weights of the version that this round makes."""
        return self.at(self.version + 1)

    @property
    def number(self) -> int:
        """The number of the round, counted from 1. It is also the number of the version that this round makes."""
        return self.version + 1

    @property
    def last_step(self) -> int:
        """The number of the round's last step, after which each worker sends its gradient."""
        return self.first_step + self.steps - 1

    @property
    def finished(self) -> int:
        """The number of steps taken before this round."""
        return self.first_step - 1

    @property
    def numbers(self) -> range:
        """The numbers of the steps in this round."""
        return range(self.first_step, self.last_step + 1)

    def reaches(self, every: int) -> bool:
        """Return True if the number of a step in this round is a multiple of `every`."""
        return self.last_step // every > self.finished // every
