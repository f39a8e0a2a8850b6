"""Task, the class that users write for their own model and data.

The networks and data sets that psnode includes form a Task too (`psnode.tasks.classification`).
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

from psnode.codecs.registry.python_files import extend_path, import_file
from psnode.config.names import names_file
from psnode.errors import ConfigurationError, in_one_line

if TYPE_CHECKING:
    import torch

    from psnode.config.schedules import OwnRate

# A batch is any value that Data.batch returns and the Task's own methods understand. Tensors inside tuples, lists and dicts are
# moved to the training device.
Batch = Any


@runtime_checkable
class Data(Protocol):
    """A finite set of examples that returns whole batches."""

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> Batch:
        """Return the examples at `indices` (1-D, values in 0..len-1), collated on the CPU.

        `rng` supplies the random numbers of augmentation, and is None in evaluation. The same indices and an rng with the same
        seed must give the same batch; otherwise a resumed run is not exact. A background thread makes the calls, one at a time.
        """
        ...


class Task(ABC):
    """A model, its data, loss and metrics. Every rank constructs its own Task, and the models must have the same tensors.

    `options` are the `--task-option KEY=VALUE` settings, as strings.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self.options = dict(options or {})

    @abstractmethod
    def model(self) -> torch.nn.Module:
        """Return a new model in float32. torch's generator is seeded before the call, with the same seed on every rank."""

    @abstractmethod
    def train_data(self) -> Any:
        """Return the training examples, which are dealt among the workers. They must be the same on every rank.

        The result may be a Data, a map-style or iterable data set of torch or Hugging Face, or a DataLoader of such a data set
        (docs/data.md).
        """

    @abstractmethod
    def eval_data(self) -> Any:
        """Return the examples on which the evaluator measures the model. The ranks of a training run do not call this.

        The result may have the types of `train_data`, except iterable data sets.
        """

    @abstractmethod
    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, Any]:
        """Return the mean loss of `batch`, a float32 scalar tensor with a graph, and the outputs that `metrics` receives."""

    def metrics(self, outputs: Any, batch: Batch) -> dict[str, float]:
        """Return SUMS over the batch, by name, e.g. {"top1": number of right answers}.

        psnode divides the sums over batches by the sum of their `size`.
        """
        return {}

    def statistics(self, model: torch.nn.Module) -> dict[str, str]:
        """Return the names of the buffers of `model` that depend on a worker's own data, each with "mean" or "max".

        A checkpoint holds the mean or the maximum of the workers' values of such a buffer. By default these are the buffers of
        torch's batch and instance norms and of its quantisation observers. Extend the result if your own modules keep running
        statistics. All other buffers in the state dict must be the same on every worker.
        """
        from psnode.tasks.model_tensors import batch_statistics

        return batch_statistics(model)

    def constrain(self, model: torch.nn.Module) -> None:  # noqa: B027  # a task without a constraint has nothing to write
        """Enforce constraints on the trainable weights of `model`, e.g. clamp them or bound their norms.

        Only the master calls this method, without gradients, after each update of all weights; workers receive the result. A
        model whose forward pass writes its own weights is refused; move such writes to this method.
        """

    def parameter_groups(self, model: torch.nn.Module) -> Sequence[Mapping[str, Any]]:
        """Return the parameters that have their own settings, as in torch.optim: dictionaries of "params" and settings.

        "params" are parameters of `model` or their names. The settings that a group may override are lr (or lr_factor, which
        multiplies the run's learning rate), weight_decay, momentum, nesterov, betas, beta2 and eps. Every trained parameter
        must be in one group. Without groups, all parameters follow the run's settings. The master and all ranks that update
        weights call this.
        """
        return []

    def optimizer(self, name: str, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
        """Return the optimizer of one trained tensor, with --optimizer task. The rank that updates the tensor calls this.

        In each step the optimizer's learning rate is multiplied by the schedule's value divided by --lr.
        """
        raise NotImplementedError

    @property
    def own_optimizer(self) -> Callable[[str, torch.nn.Parameter], torch.optim.Optimizer] | None:
        """The method `optimizer`, or None if the task does not define it."""
        return None if type(self).optimizer is Task.optimizer else self.optimizer

    def learning_rate(self, step: int, *, lr: float, steps_per_epoch: int, total_steps: int) -> float:
        """Return the learning rate at `step`, counted from 0, with --lr-schedule task.

        This must be a pure function and the same on every rank. `lr` is --lr, and `total_steps` the number of steps of the
        complete run. If a run continues with another number of workers, `step` and `total_steps` are counted as if the run had
        always had this number. A warm-up (--warmup-steps) is applied in addition.
        """
        raise NotImplementedError

    @property
    def own_rate(self) -> OwnRate | None:
        """The method `learning_rate`, or None if the task does not define it."""
        return None if type(self).learning_rate is Task.learning_rate else self.learning_rate

    @property
    def steps_per_epoch(self) -> int | None:
        """The number of steps in an epoch, whatever the number of workers. If None, it follows from the number of examples."""
        return None

    @property
    def constrains(self) -> bool:
        """True if the task defines `constrain`."""
        return type(self).constrain is not Task.constrain

    @abstractmethod
    def size(self, batch: Batch) -> int:
        """Return the number of examples (or tokens, ...) in `batch`.

        This is the number over which `loss` is a mean and `metrics` are sums.
        """


def load_task(spec: str, options: Mapping[str, str] | None = None) -> Task:
    """Return the Task that `spec` names, constructed with `options`.

    `spec` is path/to/task.py or package.module, followed by :Name if the file or module defines several Task classes. The file's
    directory, or the current directory for a module, is added to the end of sys.path, so that the code can import modules next
    to it. Raises ConfigurationError that names the missing file or class, or the error that the code raised.
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
