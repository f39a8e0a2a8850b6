"""Contenders of `psnode bench peers`: psnode's schemes, DDP's hooks, and no communication, each as one command."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from psnode.bench.contest.ddp_process import ProcessSettings
from psnode.config.load import load
from psnode.config.plain_json import to_json
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError
from psnode.exchange.routes.refusals import require_straight
from psnode.jobs.launch import find_mpirun
from psnode.jobs.planning.ddp_hooks import Communication
from psnode.jobs.planning.scheme_flags import flag_pairs, scheme_settings, settings_of


@dataclass(frozen=True)
class SharedSettings:
    """Settings that all contenders share.

    `batch`: examples per worker and step. `evaluate_every`: steps between checkpoints; 0: no checkpoints. `options`: options of
    the data set. `task`: a task as in `--task` of train, in place of network and data set; `options` are then its options. Its
    training data must be a psnode.task.Data. Raises ConfigurationError for a task with `evaluate_every`, since accuracies are
    measured only of networks that classify images.
    """

    network: str = "torchvision:resnet18"
    dataset: str = "synthetic"
    data_dir: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    workers: int = 4
    batch: int = 16
    lr: float = 0.01
    seed: int = 1
    steps: int = 36
    evaluate_every: int = 0
    task: str | None = None

    def __post_init__(self) -> None:
        if self.task is not None and self.evaluate_every:
            raise ConfigurationError(f"the accuracy of the task {self.task} is not measured: leave evaluate_every at 0")

    def task_options(self, marks: Path) -> dict[str, str]:
        """Return the options of `psnode.bench.contest.step_marks.metered`."""
        if self.task is not None:
            return {"marks": str(marks), "task": self.task, **dict(self.options)}
        found = {"marks": str(marks), "network": self.network, "dataset": self.dataset, "seed": str(self.seed)}
        return {**found, **({"data_dir": self.data_dir} if self.data_dir else {}), **dict(self.options)}


class Label(NamedTuple):
    """The name of a row and its `kind`.

    The kinds are psnode, alone (exchange without training), ddp, hook (psnode's hook in DDP), and floor (no communication).
    """

    name: str
    kind: str

    @property
    def star(self) -> bool:
        """True if the contender has a master, which is on a host of its own."""
        return self.kind in ("psnode", "alone")


class Contender(Protocol):
    """A program or setting that is measured. It has one row in each table."""

    @property
    def label(self) -> Label: ...

    def hosts(self, workers: int) -> int:
        """Return the number of hosts that the contender needs."""

    def command(self, ground: SharedSettings, folder: Path) -> list[str]:
        """Return the command line of the contender, which writes marks to folder/marks, and checkpoints below `folder`."""

    def checkpoints(self, folder: Path) -> dict[int, Path]:
        """Return the weight files of the run's checkpoints, by step."""


@dataclass(frozen=True)
class Psnode:
    """`psnode train` on a master and workers. `flags`: a scheme, followed by flags of train.

    `alone`: True to exchange the same gradients in every step, without training.
    """

    flags: str
    alone: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that are not comparable. Raises ConfigurationError.

        These are settings that train refuses, settings that all contenders share, and topologies in which hosts pass on the
        bytes of other hosts.
        """
        resolve(config := load(self.settings, {}))
        require_straight(config, "psnode bench peers")

    @property
    def settings(self) -> dict[str, Any]:
        """The flags as a dict of settings by name.

        Raises ConfigurationError for an unknown flag, and for a flag that all contenders share.
        """
        return scheme_settings(self.flags)

    @property
    def label(self) -> Label:
        return Label(alone_name(self.flags), "alone") if self.alone else Label(f"psnode {self.flags}", "psnode")

    def hosts(self, workers: int) -> int:
        return workers + 1

    def command(self, ground: SharedSettings, folder: Path) -> list[str]:
        return [
            find_mpirun(), "-n", str(ground.workers + 1), sys.executable, "-m", "psnode", *self.arguments(ground, folder)
        ]  # fmt: skip

    def arguments(self, ground: SharedSettings, folder: Path) -> list[str]:
        """Return the arguments of the command `psnode`, the same on every rank.

        Raises ConfigurationError for a task whose gradients are only exchanged.
        """
        if self.alone and ground.task is not None:
            raise ConfigurationError("only gradients of networks are exchanged without training, not those of a task")
        options = ground.task_options(folder / "marks")
        # no progress lines, since their figures sometimes cost a pass over the gradients
        task = "Exchange" if self.alone else "Metered" if ground.task is None else "MeteredTask"
        flags = {
            "--task": f"psnode.bench.contest.step_marks:{task}", "--batch-size": ground.batch, "--lr": ground.lr,
            "--seed": ground.seed, "--threads": 1, "--max-steps": ground.steps,
            "--eval-freq": ground.evaluate_every, "--keep-last": 0, "--log-interval": ground.steps + 1,
            "--train-dir": folder / "run",
        }  # fmt: skip
        return [
            "train", "--no-tensorboard",
            *(word for key, value in flags.items() for word in (key, str(value))),
            *(word for key, value in options.items() for word in ("--task-option", f"{key}={value}")),
            *(word for flag, value in flag_pairs(self.flags) for word in _spelled(flag, value)),
        ]  # fmt: skip

    def checkpoints(self, folder: Path) -> dict[int, Path]:
        from psnode.records import checkpoint

        return {checkpoint.step_of(path): path / checkpoint.MODEL for path in checkpoint.complete(folder / "run")}


def alone_name(flags: str) -> str:
    """Return the name of the contender that only exchanges the gradients of the scheme in `flags`, without training."""
    return f"psnode {flags}, nothing but the exchange"


def _spelled(flag: str, value: str | None) -> list[str]:
    """Return a setting as arguments of `psnode train`, whose boolean flags take no value."""
    [setting] = settings_of(flag)
    if setting.kind is bool:
        return [flag if setting.parse(str(value), flag) else flag.replace("--", "--no-", 1)]
    return [flag, str(value)]


@dataclass(frozen=True)
class Ddp:
    """DDP over gloo, or independent processes without communication (`none`)."""

    communication: str

    def __post_init__(self) -> None:
        Communication.parse(self.communication)

    @property
    def label(self) -> Label:
        if self.communication == "none":
            return Label("no communication", "floor")
        return Label(f"DDP {self.communication}", "hook" if self.communication.startswith("psnode:") else "ddp")

    def hosts(self, workers: int) -> int:
        return max(2, workers)  # netlab.sh makes at least two

    def command(self, ground: SharedSettings, folder: Path) -> list[str]:
        program = ProcessSettings(
            communication=self.communication, options=ground.task_options(folder / "marks"), directory=str(folder),
            batch=ground.batch, steps=ground.steps, lr=ground.lr, seed=ground.seed, evaluate_every=ground.evaluate_every,
            workers=ground.workers,
        )  # fmt: skip
        path = folder / "program.json"
        path.write_text(to_json(asdict(program)))
        return [sys.executable, "-m", "psnode.bench.contest.ddp_process", str(path)]

    def checkpoints(self, folder: Path) -> dict[int, Path]:
        return {int(path.stem.removeprefix("step-")): path for path in sorted(folder.glob("step-*.safetensors"))}
