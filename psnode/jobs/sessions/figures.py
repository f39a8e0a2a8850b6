"""Figures of a session: epochs, steps, learning rate and gradient norm, on workers and, after the run, on rank 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from psnode.errors import ConfigurationError
from psnode.exchange.shard.consistency import examples_a_round
from psnode.records.directory import saved_run
from psnode.records.metrics import METRICS, read_records

if TYPE_CHECKING:
    from psnode.config import Config
    from psnode.task import Batch
    from psnode.tasks.own_loop import OwnLoop


class Figures(Protocol):
    """The figures of a session that the program can read. Steps are those of the whole job, not of one worker.

    * steps_per_epoch, total_steps: the number of steps in an epoch, and in the run
    * epoch: the number of finished epochs
    * lr: the learning rate of the last step; before the first step, the rate that this step will have
    * gradient_norm: the L2 norm of the mean gradient of the last step, before clipping; None without clip_grad_norm, and
      before the first step
    """

    @property
    def steps_per_epoch(self) -> int: ...  # see the class's docstring
    @property
    def total_steps(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def gradient_norm(self) -> float | None: ...


class RecordedFigures:
    """The figures of a run that has ended, read from its records for the program on rank 0.

    `steps_per_epoch`: the number of steps in an epoch at the end of the run.
    """

    def __init__(self, run: Path, config: Config, steps_per_epoch: int) -> None:
        self._run, self._config = run, config
        self.steps_per_epoch = steps_per_epoch

    @cached_property
    def _last(self) -> dict[str, Any]:
        last: dict[str, Any] = {}
        for last in read_records(self._run / METRICS):  # noqa: B007  # only the last record is used
            pass
        return last

    @property
    def total_steps(self) -> int:
        """The number of the last step that the run was to take.

        Earlier epochs may have had other numbers of steps, because the number of workers differed.
        """
        offset = round(self._last["epoch"] * self.steps_per_epoch) - self._last["step"] if self._last else 0
        return self._config.total_steps(self.steps_per_epoch, offset)

    @property
    def epoch(self) -> int:  # see the docstring of Figures
        return int(self._last.get("epoch", 0))

    @property
    def lr(self) -> float:
        return float(self._last.get("lr", self._config.lr or 0.0))

    @property
    def gradient_norm(self) -> float | None:
        norm: float | None = self._last.get("gradient_norm")
        return norm


def workers_at_end(run: Path) -> int:
    """Return the number of workers with which a run ended.

    It is less than at the beginning if workers left before the last epoch of the run.
    """
    _, workers = saved_run(run)["parts"][-1]
    return int(workers)


def epoch_of(task: OwnLoop, config: Config, workers: int) -> int:
    """Return the number of steps in an epoch if `workers` workers share the examples."""
    return task.steps_per_epoch or max(1, len(task.train_data()) // examples_a_round(config, workers))


def before_the_loop(name: str) -> ConfigurationError:
    """Return the error for a program that reads the figure `name` before the loop over its batches has begun."""
    return ConfigurationError(
        f"s.{name} is known inside the loop over s.batches(loader), and after it: the loader says how long an epoch is"
    )


class WorkerBatches:
    """Iterator over the batches of a rank.

    `draw` returns the next batch, or None at the end. `count`: the length of the iterator, which tqdm shows; None if unknown.
    It is the number of batches from the creation of the iterator to the planned end of the run.
    """

    def __init__(self, draw: Callable[[], Batch | None], count: int | None) -> None:
        self._draw, self._count = draw, count

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if (batch := self._draw()) is None:
            raise StopIteration
        return batch

    def __len__(self) -> int:
        if self._count is None:
            raise TypeError("the number of batches is unknown: under this consistency only rank 0 knows the last step")
        return self._count
