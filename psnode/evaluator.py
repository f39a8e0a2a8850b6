"""The evaluator, a separate process that follows the checkpoints of a run and evaluates each one once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from psnode.config import Config
from psnode.config.files import read_json
from psnode.config.load import check_trust
from psnode.config.names import locate_task, names_logger_file
from psnode.config.plain_json import to_json
from psnode.errors import CheckpointError, ConfigurationError, DeadlineExceededError
from psnode.protocol.messages import plain
from psnode.records import checkpoint
from psnode.records.branches import branch, evaluations
from psnode.records.directory import saved_config, saved_run
from psnode.records.evaluations import Evaluation, append
from psnode.records.loggers.base import Logger
from psnode.records.loggers.observer import Observer, chosen
from psnode.records.metrics import (
    EMA_EVALUATIONS,
    EVALUATIONS,
    METRICS,
    SUMMARY,
    read_records,
    write_atomically,
)
from psnode.records.retention import reading
from psnode.task import Batch, Data, Task
from psnode.tasks import model_tensors
from psnode.tasks.data.given import eval_data_of
from psnode.tasks.device import choose_device, device_errors, to_device
from psnode.tasks.loading import make_task

_LOG = logging.getLogger(__name__)

_STOPPED = 75  # exit code in summary.json of a stopped run, which can be continued
_ATTEMPTS = 3  # attempts to read a checkpoint that looks broken, since a network file system may show new files late


def evaluate(task: Task, model: nn.Module, data: Data, step: int, batch_size: int, device: torch.device) -> Evaluation:
    """Return loss and metrics of `model` on all of `data`, in evaluation mode and without gradients."""
    start = time.perf_counter()
    model.eval()
    loss, examples, sums = 0.0, 0, dict[str, float]()
    with torch.inference_mode():
        for first in range(0, len(data), batch_size):
            indices = np.arange(first, min(first + batch_size, len(data)), dtype=np.int64)
            batch: Batch = to_device(data.batch(indices, None), device)
            value, outputs = task.loss(model, batch)
            size = task.size(batch)
            loss += float(value) * size
            examples += size
            for name, metric in task.metrics(outputs, batch).items():
                sums[name] = sums.get(name, 0.0) + float(metric)
    means = {name: value / examples for name, value in sums.items()}
    return Evaluation(
        step=step,
        loss=loss / examples,
        top1=means.get("top1"),
        top5=means.get("top5"),
        examples=examples,
        seconds=time.perf_counter() - start,
        metrics=means,
    )


class Evaluator:
    """Evaluates checkpoints of the run in `train_dir` and appends the results to the run's evaluations.jsonl.

    With `ema`, evaluates the moving averages of the weights and writes to evaluations-ema.jsonl.
    """

    def __init__(self, train_dir: Path, config: Config, task: Task | None, batch_size: int | None, *, ema: bool = False) -> None:
        if ema and config.ema_decay is None:
            raise ConfigurationError(
                f"--ema evaluates moving averages, and the run in {train_dir} has none: it needs --ema-decay"
            )
        self._weights, self._tag = (checkpoint.EMA, "eval-ema") if ema else (checkpoint.MODEL, "eval")
        self._results = train_dir / (EMA_EVALUATIONS if ema else EVALUATIONS)
        self._train_dir = train_dir
        self._device = choose_device(config.enable_gpu)
        self._batch_size = batch_size or config.test_batch_size
        self._task = task or make_task(config)
        self._data = eval_data_of(self._task.eval_data(), config)
        torch.manual_seed(config.seed)
        self._model = self._task.model()
        with self._device_errors():
            self._model.to(self._device)
        self._loggers = Observer(_loggers(config), train_dir.absolute())
        self._config = config
        self._done = set[int]()
        self._failures: dict[str, int] = {}

    def pending(self) -> list[Path]:
        """Return the checkpoints of the run's branch that are not evaluated yet and not known to be broken, oldest first."""
        return [
            path
            for path in self._look()
            if checkpoint.step_of(path) not in self._done and self._failures.get(path.name, 0) < _ATTEMPTS
        ]

    def _look(self) -> dict[Path, str | None]:
        """Return the run's present branch, and remove the records of abandoned checkpoints from the results.

        A checkpoint is abandoned if its weights have been replaced, or if its step is outside the branch.
        """
        found = branch(self._train_dir)
        kept = list(evaluations(self._train_dir, self._results.name, found))
        records = list(read_records(self._results))
        if len(kept) < len(records):
            lines = "".join(to_json(record) + "\n" for record in kept)
            write_atomically(self._results, lines.encode())
        self._done = {record["step"] for record in kept}
        return found

    def measure(self, path: Path) -> Evaluation:
        """Evaluate the checkpoint at `path`. Record the result if the checkpoint is in this run's branch and not recorded yet.

        Raises CheckpointError if the checkpoint is broken or does not fit the model, or if the result cannot be written.
        """
        try:
            with reading(path), self._device_errors():
                found = checkpoint.Checkpoint.open(path)
                model_tensors.load(self._model, found.tensors(self._weights))
        except RuntimeError as error:
            raise CheckpointError(
                f"checkpoint {path} does not fit the network of config.json: {str(error).splitlines()[0]}"
            ) from error
        with self._device_errors():
            result = evaluate(self._task, self._model, self._data, found.step, self._batch_size, self._device)
        result = replace(result, model=found.facts["files"][checkpoint.MODEL]["xxh3_128"])
        own = path.resolve() in {known.resolve() for known in self._look()}
        if own and found.step not in self._done:
            self._record(result)
        print(result, flush=True)
        return result

    def _device_errors(self) -> AbstractContextManager[None]:
        return device_errors(f"--batch-size ({self._batch_size})")

    def _record(self, result: Evaluation) -> None:
        append(self._results, result)
        self._loggers.begin(self._config, result.step, evaluates=True)
        figures = {"loss": result.loss, **result.metrics}
        self._loggers.scalars(result.step, {f"{self._tag}/{name}": value for name, value in figures.items()})
        self._done.add(result.step)

    def measure_all(self) -> bool:
        """Evaluate the pending checkpoints, and report and skip broken ones. Return True if any were pending."""
        pending = self.pending()
        for path in pending:
            try:
                self.measure(path)
            except CheckpointError as error:
                attempts = self._failures[path.name] = self._failures.get(path.name, 0) + 1
                if attempts == _ATTEMPTS and path.exists():
                    _LOG.warning("%s; skipped", plain(str(error)))
        return bool(pending)

    @property
    def broken(self) -> bool:
        """True if any checkpoint was skipped."""
        return any(count >= _ATTEMPTS for count in self._failures.values())

    def close(self) -> None:
        """Make the loggers write their remaining records, and end the loggers."""
        self._loggers.end()


def follow(
    train_dir: Path,
    *,
    checkpoint: str | None = None,
    once: bool = False,
    patience: float = 600.0,
    interval: float = 1.0,
    batch_size: int | None = None,
    enable_gpu: bool = False,
    task: Task | str | None = None,
    trust_run: bool = False,
    ema: bool = False,
) -> int:
    """Evaluate the checkpoints of the run in `train_dir` as they appear, until the run has ended. Return the exit code.

    `checkpoint`: evaluate only this checkpoint, given by its step or path. `once`: evaluate only the checkpoints that exist now.
    `ema`: evaluate the moving averages of the weights. `interval`: seconds between checks.

    `patience`: the seconds to wait for a run that has not begun, for a stopped run (exit code 75) that may be continued, and for
    a run that has not ended but writes nothing.

    `task`: the task that a program passed to psnode.run, or FILE|MODULE as in --task. The code of FILE or MODULE is executed.
    If tasks or loggers are named only in the run's record, their code is executed only with `trust_run`. A codec file that the
    record names is never executed.

    The exit code is 0, or 5 if a checkpoint could not be read. Raises ConfigurationError, CheckpointError and
    DeadlineExceededError.
    """
    _await_run(train_dir, 0.0 if once or checkpoint is not None else patience, interval)
    config = replace(saved_config(train_dir), enable_gpu=enable_gpu)
    check_trust(train_dir, config.to_dict(), () if task is None else ("task",), trusted=trust_run, used=("task",))
    config = config if trust_run else _without_recorded_loggers(config)
    if isinstance(task, str):
        config, task = replace(config, task=locate_task(task)), None
    evaluator = Evaluator(train_dir, config, task, batch_size, ema=ema)
    try:
        if checkpoint is not None:
            evaluator.measure(_find(train_dir, checkpoint))
            return 0
        silence, written = time.monotonic(), -1
        while True:
            code = _ended(train_dir)  # read first, so that checkpoints written before the end are evaluated below
            before, written = written, _written(train_dir)
            if evaluator.measure_all() or written != before:
                silence = time.monotonic()
            finished = code not in (None, _STOPPED) or time.monotonic() - silence >= patience
            if (once or finished) and not evaluator.pending():
                break
            time.sleep(interval)
    finally:
        evaluator.close()
    if code is None and not once:
        raise DeadlineExceededError(
            f"the run in {train_dir} has written nothing for {patience:g} s and has not ended: it was killed, or raise --patience"
        )
    return CheckpointError.exit_code if evaluator.broken else 0


def _without_recorded_loggers(config: Config) -> Config:
    """Return `config` without the loggers that are defined in files, and warn about them.

    Their code is named only by the run's record, which may not be trusted, and evaluations do not need them.
    """
    left_out = [name for name in config.log_to if names_logger_file([name])]
    if left_out:
        _LOG.warning(
            "evaluations are not logged to %s, which only the run's record names: add --trust-run if you trust its directory",
            ", ".join(map(plain, left_out)),
        )
    return replace(config, log_to=tuple(name for name in config.log_to if name not in left_out))


def _loggers(config: Config) -> dict[str, Callable[[], Logger]]:
    """Return functions that make the run's loggers, by name. If any logger is unavailable, warn and return an empty dict."""
    try:
        return chosen(config)
    except ConfigurationError as error:
        _LOG.warning("evaluations are only in %s: %s", EVALUATIONS, error)
        return {}


def _written(train_dir: Path) -> int:
    """Return the length of the run's metrics.jsonl in bytes, or 0 if the file cannot be read."""
    try:
        return (train_dir / METRICS).stat().st_size
    except OSError:
        return 0


def _await_run(train_dir: Path, patience: float, interval: float) -> None:
    """Wait until the run's config.json can be read, at most `patience` seconds.

    If it still cannot be read then, raises the ConfigurationError of the last attempt.
    """
    end, told = time.monotonic() + patience, False
    while True:
        try:
            saved_run(train_dir)
            return
        except ConfigurationError:
            if time.monotonic() >= end:
                raise
        if not told:
            _LOG.info("waiting for a run in %s, for %g s at most", train_dir, patience)
            told = True
        time.sleep(interval)


def _find(train_dir: Path, which: str) -> Path:
    own = train_dir / checkpoint.CHECKPOINTS
    path = own / checkpoint.step_directory(int(which)) if which.isdecimal() else Path(which).resolve()
    if not path.is_dir():
        steps = ", ".join(str(checkpoint.step_of(found)) for found in checkpoint.complete(train_dir)) or "none"
        raise ConfigurationError(f"there is no checkpoint {which}: the run's checkpoints are {steps}")
    return path


def _ended(train_dir: Path) -> int | None:
    """Return the exit code in summary.json, or None if the run has not ended."""
    try:
        return int(read_json(train_dir / SUMMARY)["exit_code"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
