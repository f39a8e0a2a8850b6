"""A contender of `psnode bench convergence` without psnode: DistributedDataParallel with one of torch's communication hooks."""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from psnode.bench.contest.local_processes import run_processes
from psnode.bench.convergence.accuracy_curves import CurvePoint
from psnode.bench.convergence.convergence_run import FILE, ConvergenceRun, given_in
from psnode.config import Config, settings
from psnode.config.files import read_json
from psnode.config.load import load
from psnode.config.plain_json import to_json
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError, DivergedError, TransportError
from psnode.jobs.planning.ddp_hooks import Communication
from psnode.jobs.subprocess_runs import begin

PREFIX = "ddp:"
PROGRAM, RESULT = "program.json", "result.json"
_HOOKS = ("fp32", "fp16", "bf16", "powersgd")
_OPTIMIZERS = ("sgd", "adam", "adamw")
# Settings that DDP follows. Free settings, which may differ when a run is resumed, are accepted too, except those in
# _NOT_FOLLOWED.
_FOLLOWED = frozenset(
    {
        "task", "task_option", "network", "dataset", "synthetic_shape", "synthetic_classes", "synthetic_examples", "batch_size",
        "seed", "optimizer", "lr", "momentum", "nesterov", "beta2", "eps", "weight_decay", "clip_grad_norm", "warmup_steps",
        "warmup_epochs", "scheme",
    }
)  # fmt: skip
_NOT_FOLLOWED = frozenset({"enable_gpu", "init_from"})  # free settings that matter, but that DDP does not follow


class DdpRun(ConvergenceRun):
    """A training by DDP over gloo on this host, with the task, optimizer and schedule that psnode's settings describe.

    The first of `flags` is ddp:HOOK, where HOOK is fp32, fp16, bf16 or powersgd with its parameters, as for `psnode bench peers`.
    """

    @property
    def communication(self) -> str:
        """The hook with its parameters. Raises ConfigurationError for an unknown hook."""
        found = self.flags[0].removeprefix(PREFIX)
        kind = Communication.parse(found).kind
        if kind not in _HOOKS:
            raise ConfigurationError(f"--run {self.flags[0]}: the hooks compared here are {', '.join(_HOOKS)}")
        return found

    def config(self) -> Config:
        """Return the settings. Learning rate and momentum, unless given, are those of psnode's scheme dense.

        Raises ConfigurationError for a setting that DDP does not follow.
        """
        words = [*self.common, *self.flags[1:], "--seed", str(self.seed)]
        given = given_in(words)
        if FILE in given:
            raise ConfigurationError(f"--run {self.flags[0]}: DDP reads no file of settings here: leave out --config")
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
        """Raise ConfigurationError for a hook or setting that is not supported with DDP.

        Raise PsnodeError if the directory contains another run.
        """
        self.program()
        self._require_same()

    def _asked(self, directory: Path) -> list[str]:
        return [*self.flags, *self.common, str(self.seed), str(self.workers), str(self.evaluate_every)]

    def program(self) -> dict[str, Any]:
        """Return the content of the file program.json, which the processes of the run read with `program_of`."""
        return {
            "communication": self.communication, "config": self.config().to_dict(), "evaluate_every": self.evaluate_every,
            "directory": str(self.directory.absolute()),
        }  # fmt: skip

    def complete(self) -> None:
        """Train and evaluate, unless already done.

        Raises DivergedError if the training diverges in this call or diverged in an earlier one, and TransportError if a process
        fails.
        """
        self._require_same()
        if not (self.directory / RESULT).exists():
            begin(self.directory, self._asked(self.directory))
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
        """Return the figures of this run, by the same names as for a run of psnode.

        `encode` is None, since DDP does not time its hooks.
        """
        found, last = read_json(self.directory / RESULT), self.curve()[-1]
        each_way = last.nbytes / last.step / 2
        return {
            "lr": self.config().lr, "top1": last.top1, "loss": last.loss, "uplink_bytes": each_way, "downlink_bytes": each_way,
            "ratio": 4 * found["coordinates"] / each_way if each_way else None, "step": statistics.median(found["seconds"]),
            "encode": None,
        }  # fmt: skip

    def curve(self) -> list[CurvePoint]:
        """Return a point for each evaluation.

        The bytes are those of a ring all-reduce: for s bytes among P workers, each link carries 2 (P - 1) / P s bytes in each
        direction, both at the same time. `computing` includes the exchange over the loopback interface.
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
    """Return True if `flags` are the flags of a contender that DDP trains."""
    return flags[0].startswith(PREFIX)


def program_of(path: Path) -> tuple[str, Config, int, Path]:
    """Return the content of the program in the file `path`: communication, settings, steps between evaluations, and directory."""
    found = read_json(path)
    return str(found["communication"]), Config.from_dict(found["config"]), int(found["evaluate_every"]), Path(found["directory"])
