"""One run of `psnode bench convergence`: a training job, the evaluations of its checkpoints, and its figures."""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from psnode.bench.convergence.accuracy_curves import CurvePoint
from psnode.config import settings
from psnode.config.declaration import click_option
from psnode.config.files import read_json
from psnode.config.load import load
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError, DivergedError, PsnodeError
from psnode.jobs.subprocess_runs import begin, begun_in, finished, holds, require_same, run_psnode
from psnode.plans.roles import MASTER
from psnode.records import checkpoint
from psnode.records.branches import evaluations
from psnode.records.directory import saved_config, saved_run
from psnode.records.metrics import EVALUATIONS, METRICS, SUMMARY, read_records

FILE = "file"  # a key that is not the name of a setting
_SETTLED = 0.1  # the times of a run omit this first share of its steps: kernels compile, and caches are cold
_KINDS = ("gradients", "weights")  # kinds of frames
_COMPUTING = ("forward_backward", "encode", "decode", "update", "downlink")  # parts of a step in which a process computes


@dataclass(frozen=True)
class ConvergenceRun:
    """One training run.

    `flags`: a scheme and its own flags, or only flags, which then apply to the default scheme; `common`: the flags of all runs.
    `evaluate_every`: steps between evaluations; 0: only the last checkpoint is evaluated. `name`: the beginning of the
    directory's name; if empty, the flags are used.
    """

    flags: tuple[str, ...]
    common: tuple[str, ...]
    seed: int
    workers: int
    local: bool
    output: Path
    evaluate_every: int = 0
    name: str = field(default="", compare=False)

    @cached_property
    def directory(self) -> Path:
        """The directory of the run. A run that has begun keeps its directory, even if the name has changed since.

        A new run gets a directory that consists of its name and seed.
        """
        name = re.sub(r"[^\w.+=,-]+", "_", self.name).strip("_") or "-".join(self.flags).replace("/", "_").replace(" ", "")
        own = self.output / f"{name}-{self.seed}"
        return next((each for each in (own, *begun_in(self.output)) if holds(each, self._asked(each))), own)

    @property
    def arguments(self) -> list[str]:
        """The command-line arguments of `psnode` for this run."""
        return self._asked(self.directory)

    @property
    def _coding(self) -> list[str]:
        """The flags of the run, with --scheme before its scheme."""
        return [*self.flags] if self.flags[0].startswith("-") else ["--scheme", *self.flags]

    def _asked(self, directory: Path) -> list[str]:
        """Return the arguments that would make this run in `directory`; they also identify the run later."""
        train = ["train", *self.common, *self._coding, "--seed", str(self.seed)]
        train += ["--train-dir", str(directory), "--eval-freq", str(self.evaluate_every)]
        if self.evaluate_every:
            train += ["--keep-last", "0"]  # keep all checkpoints until they are evaluated
        workers = str(self.workers)
        return [*train, "--local", workers] if self.local else ["launch", "-n", workers, "--", *train]

    def check(self) -> None:
        """Raise ConfigurationError for settings that train would refuse.

        Raise PsnodeError if the directory contains another run.
        """
        try:
            given = given_in([*self.common, *self._coding])
            file = given.pop(FILE, None)
            resolve(load(given, os.environ, file))
        except (PsnodeError, click.UsageError) as error:
            told = error.format_message() if isinstance(error, click.UsageError) else error
            raise ConfigurationError(f"--run {shlex.join(self.flags)}: {told}") from error
        self._require_same()

    def _require_same(self) -> None:
        """Raise PsnodeError if the directory contains another run.

        Also raise it if the run began when the name of its scheme meant other settings.
        """
        require_same(self.directory, self._asked(self.directory))
        if not (self.directory / "config.json").exists():
            return
        scheme = resolve(saved_config(self.directory)).to_dict()
        if scheme != saved_run(self.directory).get("scheme"):
            raise PsnodeError(f"{self.directory} was made when its scheme meant something else: choose another --output")

    def complete(self) -> None:
        """Train and evaluate, unless already done; then delete the checkpoints that were written for evaluations.

        Raises DivergedError if the training diverges in this call or diverged in an earlier one. Raises PsnodeError if anything
        else fails, or if the directory contains another run.
        """
        self._require_same()
        if not finished(self.directory):
            self._require_sound()
            resume = ["--resume"] if begin(self.directory, self.arguments) else []
            self._call([*self.arguments, *resume])
        if not self._is_evaluated():
            # --trust-run: the caller of this benchmark named the task
            self._call(["evaluate", "--once", "--trust-run", "--train-dir", str(self.directory)])
        if self.evaluate_every:
            kept = checkpoint.latest(self.directory)
            for path in checkpoint.complete(self.directory)[:-1]:
                if path != kept:
                    checkpoint.remove(path)

    def _require_sound(self) -> None:
        """Raise DivergedError if the training diverged in an earlier call, since it would diverge again."""
        summary = self.directory / SUMMARY
        if summary.exists() and read_json(summary).get("exit_code") == DivergedError.exit_code:
            raise DivergedError(f"{self._name} diverged: delete {self.directory} to train it again")

    def _is_evaluated(self) -> bool:
        """Return True if the last step and every kept checkpoint of the run have been evaluated."""
        steps = {checkpoint.step_of(path) for path in checkpoint.complete(self.directory)} | {finished(self.directory)}
        return steps <= {record["step"] for record in evaluations(self.directory, EVALUATIONS)}

    @property
    def _name(self) -> str:
        return f"the run {' '.join(self.flags)} with seed {self.seed}"

    def _call(self, arguments: Sequence[str]) -> None:
        code = run_psnode(arguments)
        if code != 0:
            kind = DivergedError if code == DivergedError.exit_code else PsnodeError
            raise kind(f"{self._name} ended with exit code {code}: see its messages above")

    def figures(self) -> dict[str, Any]:
        """Return the figures of this run for the report, read from the files of the run."""
        last = self.curve()[-1]
        summary = json.loads((self.directory / SUMMARY).read_bytes())
        records = list(read_records(self.directory / METRICS))
        settled = records[int(_SETTLED * len(records)) :]
        return {
            "lr": saved_config(self.directory).lr,
            "top1": last.top1,
            "loss": last.loss,
            "uplink_bytes": summary["uplink_bytes"] / summary["steps"] / self.workers,
            "downlink_bytes": summary["downlink_bytes"] / summary["steps"] / self.workers,
            "ratio": summary["compression_ratio"],
            "step": statistics.median(record["seconds"]["step"] for record in settled),
            "encode": statistics.median(record["seconds"]["encode"] for record in settled),
        }

    def curve(self) -> list[CurvePoint]:
        """Return a point for each evaluation, in the order of steps."""
        worker, busiest = _shares(read_json(self.directory / SUMMARY), self.workers)
        sent, seconds, computing = [0], [0.0], [0.0]
        for record in read_records(self.directory / METRICS):
            sent.append(sent[-1] + record["uplink_bytes"] + record["downlink_bytes"])
            seconds.append(seconds[-1] + record["seconds"]["step"])
            computing.append(computing[-1] + sum(record["seconds"][part] for part in _COMPUTING))
        found = {record["step"]: record for record in evaluations(self.directory, EVALUATIONS)}
        return [
            CurvePoint(
                step, found[step]["loss"], found[step]["top1"],
                nbytes=worker * sent[step] / self.workers, link_bytes=busiest * sent[step], seconds=seconds[step],
                computing=computing[step],
            )
            for step in sorted(found)
        ]  # fmt: skip


def _shares(summary: Mapping[str, Any], workers: int) -> tuple[float, float]:
    """Return the bytes on all workers' links together, and the bytes on the busiest link, both relative to the bytes sent.

    A link carries gradients in and gradients out at the same time, so only the larger of the two counts for the busiest link;
    likewise for weights. In a star both results are 1, since all bytes pass the master's link. They are also 1 for runs of
    earlier versions, which did not count bytes by rank.
    """
    ranks = (summary.get("link_bytes") or {"ranks": {}})["ranks"]
    sent = sum(ways["gradients_out"] + ways["weights_out"] for ways in ranks.values())
    if not sent:
        return 1.0, 1.0
    of_workers = sum(sum(ways.values()) for rank, ways in ranks.items() if MASTER < int(rank) <= workers)
    busiest = max(sum(max(ways[f"{kind}_in"], ways[f"{kind}_out"]) for kind in _KINDS) for ways in ranks.values())
    return of_workers / sent, busiest / sent


def given_in(words: Sequence[str]) -> dict[str, Any]:
    """Return the settings that flags of `psnode train` give, by name, and --config's file under FILE. Raises click.UsageError."""
    file = click.Option(["--config", FILE], type=click.Path(path_type=Path))
    command = click.Command("train", params=[file, *(click_option(setting, "") for setting in settings().values())])
    found = command.make_context("train", [*words]).params
    return {name: value for name, value in found.items() if value not in (None, ())}
