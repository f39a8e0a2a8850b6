"""What `psnode bench peers` compares: psnode's schemes, DDP's hooks, and no communication, each as one command."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from psnode.bench.ddp import Communication, Program
from psnode.config import settings
from psnode.errors import ConfigurationError
from psnode.launch import find_mpirun
from psnode.schemes import resolve
from psnode.settings import nearest
from psnode.sources import load

# the same for all that is compared
_FIXED = frozenset(
    {
        "task", "task_option", "network", "dataset", "data_dir", "batch_size", "seed", "threads", "max_steps", "epochs",
        "batches_per_step", "eval_freq", "log_interval", "train_dir", "resume", "local", "tensorboard",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Ground:
    """What all contenders share. `batch`: examples a worker and step; `evaluate_every`: steps between checkpoints, 0: none.

    `options` are the data set's own.
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

    def task_options(self, marks: Path) -> dict[str, str]:
        """Of `psnode.bench.marks.Metered`."""
        found = {"marks": str(marks), "network": self.network, "dataset": self.dataset, "seed": str(self.seed)}
        return {**found, **({"data_dir": self.data_dir} if self.data_dir else {}), **dict(self.options)}


class Contender(Protocol):
    """One row of the table. `kind`: psnode, ddp or floor."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    def hosts(self, workers: int) -> int:
        """How many it needs."""

    def command(self, ground: Ground, folder: Path) -> list[str]:
        """What to run; marks go to folder/marks, checkpoints below `folder`."""

    def checkpoints(self, folder: Path) -> dict[int, Path]:
        """The weights it left, by step."""


@dataclass(frozen=True)
class Psnode:
    """`psnode train` on a master and the workers. `flags`: a scheme, and flags of train after it."""

    flags: str
    kind: str = "psnode"

    def __post_init__(self) -> None:
        """Refuse what train would refuse, and what is the same for all contenders."""
        words = self._words()
        given = {}
        for flag, value in zip(words[::2], [*words[1::2], None], strict=False):
            found = [setting for setting in settings().values() if flag in (setting.flag, *setting.rules.aliases)]
            if not found:
                known = [setting.flag for setting in settings().values()]
                raise ConfigurationError(f"--scheme {self.flags!r}: unknown flag {flag}{nearest(flag, known)}")
            if found[0].name in _FIXED:
                raise ConfigurationError(f"--scheme {self.flags!r}: {flag} is the same for all that is compared: leave it out")
            if value is None:
                raise ConfigurationError(f"--scheme {self.flags!r}: {flag} needs a value")
            given[found[0].name] = found[0].parse(value, flag)
        resolve(load(given, {}))

    def _words(self) -> list[str]:
        words = [part for word in shlex.split(self.flags) for part in (word.split("=", 1) if word.startswith("--") else [word])]
        return ["--scheme", *words] if words and not words[0].startswith("--") else words

    @property
    def name(self) -> str:
        return f"psnode {self.flags}"

    def hosts(self, workers: int) -> int:
        return workers + 1

    def command(self, ground: Ground, folder: Path) -> list[str]:
        options = ground.task_options(folder / "marks")
        # no line of progress: what it shows costs a pass over the gradients now and then
        flags = {
            "--task": "psnode.bench.marks:Metered", "--batch-size": ground.batch, "--lr": ground.lr, "--seed": ground.seed,
            "--threads": 1, "--max-steps": ground.steps, "--eval-freq": ground.evaluate_every,
            "--log-interval": ground.steps + 1, "--train-dir": folder / "run",
        }  # fmt: skip
        return [
            find_mpirun(), "-n", str(ground.workers + 1), sys.executable, "-m", "psnode", "train", "--no-tensorboard",
            *(word for key, value in flags.items() for word in (key, str(value))),
            *(word for key, value in options.items() for word in ("--task-option", f"{key}={value}")),
            *self._words(),
        ]  # fmt: skip

    def checkpoints(self, folder: Path) -> dict[int, Path]:
        from psnode import checkpoint

        return {checkpoint.step_of(path): path / checkpoint.MODEL for path in checkpoint.complete(folder / "run")}


@dataclass(frozen=True)
class Ddp:
    """DDP over gloo, or its processes each on its own (`none`)."""

    communication: str

    def __post_init__(self) -> None:
        Communication.parse(self.communication)

    @property
    def kind(self) -> str:
        return "floor" if self.communication == "none" else "ddp"

    @property
    def name(self) -> str:
        return "no communication" if self.kind == "floor" else f"DDP {self.communication}"

    def hosts(self, workers: int) -> int:
        return workers

    def command(self, ground: Ground, folder: Path) -> list[str]:
        program = Program(
            communication=self.communication, options=ground.task_options(folder / "marks"), directory=str(folder),
            batch=ground.batch, steps=ground.steps, lr=ground.lr, seed=ground.seed, evaluate_every=ground.evaluate_every,
        )  # fmt: skip
        path = folder / "program.json"
        path.write_text(json.dumps(asdict(program)))
        return [sys.executable, "-m", "psnode.bench.ddp", str(path)]

    def checkpoints(self, folder: Path) -> dict[int, Path]:
        return {int(path.stem.removeprefix("step-")): path for path in sorted(folder.glob("step-*.safetensors"))}
