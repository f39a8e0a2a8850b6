"""A contender of `psnode bench convergence` without psnode: DistributedDataParallel with one of torch's communication hooks."""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from psnode.bench.contest.ddp_process import Communication
from psnode.bench.contest.local_processes import run_processes
from psnode.bench.convergence.accuracy_curves import CurvePoint
from psnode.bench.convergence.convergence_run import ConvergenceRun
from psnode.config import Config, settings
from psnode.config.declaration import click_option
from psnode.config.files import read_json
from psnode.config.load import load
from psnode.config.plain_json import to_json
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError, DivergedError, TransportError
from psnode.jobs.subprocess_runs import begin, require_same

PREFIX = "ddp:"
PROGRAM, RESULT = "program.json", "result.json"
_HOOKS = ("fp32", "fp16", "bf16", "powersgd")
_OPTIMIZERS = ("sgd", "adam", "adamw")
# settings that DDP follows; those that are free do not change what psnode trains
_FOLLOWED = frozenset(
    {
        "task", "task_option", "network", "dataset", "synthetic_shape", "synthetic_classes", "synthetic_examples", "batch_size",
        "seed", "optimizer", "lr", "momentum", "nesterov", "beta2", "eps", "weight_decay", "clip_grad_norm", "warmup_steps",
        "warmup_epochs", "scheme",
    }
)  # fmt: skip
_NOT_FOLLOWED = frozenset({"enable_gpu", "init_from"})  # free settings that DDP would have to follow


class DdpRun(ConvergenceRun):
    """A training by DDP over gloo on this host, with the task, optimizer and schedule that psnode's settings describe.

    The first of `flags` is ddp:HOOK, of the hooks fp32, fp16, bf16 and powersgd of `psnode bench peers`.
    """

    @property
    def communication(self) -> str:
        """The hook. Raises ConfigurationError for an unknown one."""
        found = self.flags[0].removeprefix(PREFIX)
        kind = Communication.parse(found).kind
        if kind not in _HOOKS:
            raise ConfigurationError(f"--run {self.flags[0]}: the hooks compared here are {', '.join(_HOOKS)}")
        return found

    def config(self) -> Config:
        """Return the settings, with learning rate and momentum of the scheme dense. Raises ConfigurationError for others."""
        words = [*self.common, *self.flags[1:], "--seed", str(self.seed)]
        command = click.Command("train", params=[click_option(setting, "") for setting in settings().values()])
        given = {name: value for name, value in command.make_context("train", words).params.items() if value not in (None, ())}
        config = load({**given, "scheme": "dense"}, {})
        for name in given:
            setting = settings()[name]
            follows = name in _FOLLOWED or name.startswith("lr_") or (setting.rules.free and name not in _NOT_FOLLOWED)
            if not follows and getattr(config, name) != setting.default:
                raise ConfigurationError(f"--run {self.flags[0]}: DDP is not trained with {setting.flag} here: leave it out")
        if config.optimizer not in _OPTIMIZERS:
            raise ConfigurationError(f"--run {self.flags[0]}: DDP is trained with {', '.join(_OPTIMIZERS)} here")
        scheme = resolve(config)
        return replace(
            config,
            lr=scheme.lr if config.lr is None else config.lr,
            momentum=scheme.momentum if config.momentum is None else config.momentum,
        )

    def check(self) -> None:
        """Raise ConfigurationError for a hook or a setting that DDP is not trained with."""
        self.program()

    def program(self) -> dict[str, Any]:
        """Return the program of the processes, see `program_of`."""
        return {
            "communication": self.communication, "config": self.config().to_dict(), "evaluate_every": self.evaluate_every,
            "directory": str(self.directory.absolute()),
        }  # fmt: skip

    def complete(self) -> None:
        """Train and evaluate, unless already done.

        Raises DivergedError if the training diverged, also by an earlier call, and TransportError if a process fails.
        """
        words = [*self.flags, *self.common, str(self.seed), str(self.workers), str(self.evaluate_every)]
        require_same(self.directory, words)
        if not (self.directory / RESULT).exists():
            begin(self.directory, words)
            path = self.directory / PROGRAM
            path.write_text(to_json(self.program()))
            try:
                run_processes([sys.executable, "-m", "psnode.bench.convergence.ddp_training", str(path)], self.workers, None)
            except TransportError:
                if not (self.directory / RESULT).exists():
                    raise
        found = read_json(self.directory / RESULT)
        if "diverged" in found or any(point["loss"] is None for point in found["points"]):
            raise DivergedError(f"{self._name} diverged: delete {self.directory} to train it again")

    def figures(self) -> dict[str, Any]:
        """Return the figures of the report, as of a run by psnode; DDP does not tell how long its hooks encode."""
        found, last = read_json(self.directory / RESULT), self.curve()[-1]
        each_way = last.nbytes / last.step / 2
        return {
            "lr": self.config().lr, "top1": last.top1, "loss": last.loss, "uplink_bytes": each_way, "downlink_bytes": each_way,
            "ratio": 4 * found["coordinates"] / each_way if each_way else None, "step": statistics.median(found["seconds"]),
            "encode": None,
        }  # fmt: skip

    def curve(self) -> list[CurvePoint]:
        """Return a point for each evaluation.

        A ring all-reduce of s bytes among P workers sends 2 (P - 1) / P s bytes over each link in each direction, at once. The
        computation includes the exchange over the loopback interface.
        """
        found = read_json(self.directory / RESULT)
        share = 2 * (self.workers - 1) / self.workers
        return [
            CurvePoint(
                point["step"], point["loss"], point["top1"],
                nbytes=2 * share * point["payload"], link_bytes=share * point["payload"], seconds=point["seconds"],
                computing=point["seconds"],
            )
            for point in found["points"]
        ]  # fmt: skip


def is_ddp(flags: tuple[str, ...]) -> bool:
    """Return True for the flags of a contender that DDP trains."""
    return flags[0].startswith(PREFIX)


def program_of(path: Path) -> tuple[str, Config, int, Path]:
    """Return communication, settings, steps between evaluations and directory of the program in the file `path`."""
    found = read_json(path)
    return str(found["communication"]), Config.from_dict(found["config"]), int(found["evaluate_every"]), Path(found["directory"])
