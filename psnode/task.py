"""Task: the one class that a user writes for a model and data of their own.

The networks and data sets that come with psnode form such a Task themselves (`psnode.tasks.classification`).
"""

from __future__ import annotations

import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from psnode.config.extensions import extend_path, import_file
from psnode.config.names import names_file
from psnode.errors import ConfigurationError, in_one_line

if TYPE_CHECKING:
    import torch

    from psnode.config.schedules import OwnRate

# A batch is any value that Data.batch returns and the Task's own methods understand; tensors inside tuples, lists and dicts are
# moved to the training device.
Batch = Any


@runtime_checkable
class Data(Protocol):
    """A finite set of examples that returns whole batches."""

    def __len__(self) -> int:
        """Number of examples."""
        ...

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> Batch:
        """Return the examples at `indices` (1-D, values in 0..len-1), collated on the CPU.

        `rng` drives augmentation and is None in evaluation. The same indices and an equally seeded rng must give the same batch:
        a resumed run is exact only then. Called from a background thread, one call at a time.
        """
        ...


class Task(ABC):
    """Model, data, loss and metrics. Every rank constructs its own copy and must get the same model shape.

    `options` are the `--task-option KEY=VALUE` settings, as strings.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self.options = dict(options or {})

    @abstractmethod
    def model(self) -> torch.nn.Module:
        """Return a new model in float32. torch's generator is seeded before the call, equally on every rank."""

    @abstractmethod
    def train_data(self) -> Any:
        """Return the examples from which workers draw their shards; the same on every rank.

        Data; or a data set of torch's or Hugging Face's, map-style or iterable; or a DataLoader of one (docs/data.md).
        """

    @abstractmethod
    def eval_data(self) -> Any:
        """Return the examples that the evaluator uses; only the evaluator loads them. Like `train_data`, but no iterables."""

    @abstractmethod
    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, Any]:
        """Return the mean loss of `batch` as a float32 scalar tensor with a graph, and the outputs for `metrics`."""

    def metrics(self, outputs: Any, batch: Batch) -> dict[str, float]:
        """Return SUMS over the batch of any figures of interest, e.g. {"top1": number right}; divided by `size` later."""
        return {}

    def statistics(self, model: torch.nn.Module) -> dict[str, str]:
        """Return the buffers of `model` that a worker's passes change by its own data, with the rule by which a checkpoint
        combines them: mean or max.

        By default those of torch's batch and instance norms, and of its observers of quantisation. Extend the result if modules
        of your own keep running statistics; other buffers in the state dict must be the same on every worker.
        """
        from psnode.tasks.inventory import batch_statistics

        return batch_statistics(model)

    def constrain(self, model: torch.nn.Module) -> None:  # noqa: B027  # a task without a constraint has nothing to write
        """Enforce constraints on the trainable weights of `model`: clamp them, bound their norms.

        Called only on the master, without gradients, after each update of all weights; workers receive the result. A model whose
        forward pass writes its own weights is refused: such writes belong here.
        """

    def parameter_groups(self, model: torch.nn.Module) -> Sequence[Mapping[str, Any]]:
        """Return parameters with settings of their own in torch.optim's format: dictionaries with "params" and the settings to
        override.

        "params" are parameters of `model` or their names; overridden may be lr (or lr_factor, times that of the run),
        weight_decay, momentum, nesterov, betas, beta2 and eps. Every trained parameter is in one group, or there are no groups:
        then all follow the run's settings. Called only on the master.
        """
        return []

    def optimizer(self, name: str, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
        """Return the optimizer of one trained tensor, with --optimizer task. Called only on the master, for each tensor.

        Its learning rate is the one before the schedule: a step uses that times the schedule's value over --lr.
        """
        raise NotImplementedError

    @property
    def own_optimizer(self) -> Callable[[str, torch.nn.Parameter], torch.optim.Optimizer] | None:
        """Return `optimizer`, if the task defines it."""
        return None if type(self).optimizer is Task.optimizer else self.optimizer

    def learning_rate(self, step: int, *, lr: float, steps_per_epoch: int, total_steps: int) -> float:
        """Return the learning rate at `step`, from 0 on, with --lr-schedule task: a pure function, the same on every rank.

        lr: --lr. total_steps: the steps of the complete run. A run that continues with another number of workers counts both as
        if it had always had this number; a warm-up (--warmup-steps) is applied in addition.
        """
        raise NotImplementedError

    @property
    def own_rate(self) -> OwnRate | None:
        """Return `learning_rate`, if the task defines it."""
        return None if type(self).learning_rate is Task.learning_rate else self.learning_rate

    @property
    def steps_per_epoch(self) -> int | None:
        """Return the steps of an epoch, for any number of workers; None: the number that deals all examples among the workers."""
        return None

    @property
    def constrains(self) -> bool:
        """True if `constrain` does anything."""
        return type(self).constrain is not Task.constrain

    @abstractmethod
    def size(self, batch: Batch) -> int:
        """Return the number of examples (tokens, ...) in `batch` over which loss and metrics are averages or sums."""


def load_task(spec: str, options: Mapping[str, str] | None = None) -> Task:
    """Return the Task that `spec` names, constructed with `options`.

    `spec` is path/to/task.py or package.module, followed by :Name if that defines several Task classes. The file's own directory,
    or the current one for a module, is added to the end of sys.path, so that it can import its neighbours. ConfigurationError
    names the missing file or class, or the error that the code raised.
    """
    source, _, name = spec.partition(":")
    module = import_file(Path(source), "task") if names_file(source) else _import_module(source)
    chosen = _choose_class(module, source, name)
    try:
        return chosen(options)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"task {spec} cannot be constructed: {in_one_line(error)}") from error


def _import_module(name: str) -> ModuleType:
    extend_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"task module {name} cannot be imported: {in_one_line(error)}") from error


def _choose_class(module: ModuleType, source: str, name: str) -> type[Task]:
    """Return the class `name`, or the only concrete Task class that is defined in `module` itself."""
    tasks = {key: value for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, Task)}
    own = {key: value for key, value in tasks.items() if value.__module__ == module.__name__}
    if name:
        if name not in tasks:
            raise ConfigurationError(f"{source} has no Task class {name!r}: it has {', '.join(sorted(own)) or 'none'}")
        candidates = {name: tasks[name]}
    else:
        candidates = {key: value for key, value in own.items() if not inspect.isabstract(value)} or own
    if not candidates:
        raise ConfigurationError(f"{source} defines no subclass of psnode.task.Task")
    if len(candidates) > 1:
        raise ConfigurationError(f"{source} defines several tasks: add :NAME, one of {', '.join(sorted(candidates))}")
    [(found, chosen)] = candidates.items()
    if missing := sorted(getattr(chosen, "__abstractmethods__", ())):
        raise ConfigurationError(f"task {found} in {source} lacks the method{'s' * (len(missing) > 1)} {', '.join(missing)}")
    return chosen
