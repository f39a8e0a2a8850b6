"""The task of a model, a loss and a batch that a program passes. A prediction measures passes of a copy of the model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from psnode.errors import ConfigurationError, in_one_line
from psnode.task import Batch, Task
from psnode.tasks import model_tensors, tensor_names
from psnode.tasks.own_loop import length

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

# the loss of a batch, or the pair of loss and outputs that Task.loss returns
OwnLoss = Callable[["torch.nn.Module", Batch], Any]


class GivenModel(Task):
    """The task of a `model` on `device`, with its `loss` on one `batch`, which stands for all batches.

    The model must have been accepted by `check_model`. Model and batch are copied, so that passes do not change them. Raises
    ConfigurationError for a batch on another device, and for a model or a batch that cannot be copied.
    """

    _model: torch.nn.Module

    def __init__(self, model: torch.nn.Module, loss: OwnLoss, batch: Batch) -> None:
        super().__init__()
        if not callable(loss):
            raise ConfigurationError(f"loss is a function of the model and a batch, not {_kind(loss)}")
        self.device = device_of(model)
        for tensor in _tensors(batch):
            if tensor.device != self.device:
                raise ConfigurationError(
                    f"the batch lies on {tensor.device}, and the model on {self.device}: move one to the other's device"
                )
        self._model, self._batch, self._loss = _copied(model, "model"), _copied(batch, "batch"), loss
        self._writes = False  # True if the loss function writes to its batch, so that every pass needs a new copy

    def model(self) -> torch.nn.Module:
        """Return a new copy of the model on the host."""
        return copy.deepcopy(self._model).cpu()

    def train_data(self) -> GivenModel:
        """Return this object as the data set. Its length is the number of examples in the batch."""
        return self

    eval_data = train_data

    def __len__(self) -> int:
        return length(self._batch) or 1

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> Batch:
        """Return the one batch of the task, for any indices."""
        return self._batch

    def size(self, batch: Batch) -> int:
        """Return the number of examples in the batch: the length of its first tensor, or 1 if it contains no tensor."""
        return len(self)

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, Any]:
        """Return the loss that the program's function computes for a batch, and None in place of outputs.

        Raises ConfigurationError unless the loss is a tensor of one real number.
        """
        import torch

        found = self._loss(model, copy.deepcopy(batch) if self._writes else batch)
        loss = found[0] if isinstance(found, tuple) and len(found) == 2 else found
        if not isinstance(loss, torch.Tensor):
            remedy = ": return its .loss" if hasattr(loss, "loss") else ""
            raise ConfigurationError(f"loss must return a tensor of one number, not {_kind(loss)}{remedy}")
        if loss.numel() != 1 or not loss.is_floating_point():
            shape = "x".join(map(str, loss.shape)) or "one number"
            raise ConfigurationError(f"loss must return one real number, not a tensor of {shape} and {loss.dtype}: take its mean")
        return loss, None

    def check_loss(self) -> None:
        """Compute the loss of a copy of the model once. Raises ConfigurationError if a step cannot use it."""
        from psnode.worker.reached import Reach, parameters_of

        model = copy.deepcopy(self._model)
        model.train()
        batch = copy.deepcopy(self._batch)
        given = list(_tensors(batch))
        loss, _ = self.loss(model, batch)
        self._writes = not all(map(model_tensors.same, given, _tensors(self._batch)))
        if not math.isfinite(value := float(loss.detach())):
            raise ConfigurationError(f"the loss of the batch is {value}: give a batch whose loss is finite")
        if not loss.requires_grad:
            raise ConfigurationError(
                "the loss has no graph: compute it from the model's output without no_grad, detach, item or float"
            )
        trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
        if not any(id(parameter) in trained for parameter in parameters_of([loss])):
            raise ConfigurationError(
                "the loss reaches no parameter of the model that it is given, a copy: use the function's first argument"
            )
        Reach(model.parameters(), "plan for nn.ModuleList([model, criterion])").look([loss], trained, [])
        _refuse_compiled(model)


def check_model(model: torch.nn.Module) -> None:
    """Raise ConfigurationError for a model whose steps cannot be predicted."""
    import torch
    from torch import distributed

    if not isinstance(model, torch.nn.Module):
        raise ConfigurationError(f"model is a torch.nn.Module, not {_kind(model)}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigurationError("the model has no parameter that is trained (requires_grad): there is nothing to send")
    device_of(model)
    model_tensors.check(model, {})
    _refuse_compiled(model)
    joined = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    if joined and any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()):
        raise ConfigurationError(
            "the model's SyncBatchNorm exchanges in every pass: plan in a program of one process, before init_process_group"
        )


def _refuse_compiled(model: torch.nn.Module) -> None:
    from psnode.worker import inspection

    if reason := inspection.unwatchable(model):
        raise ConfigurationError(f"steps of this model cannot be timed, since {reason}: plan before anything is compiled")


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside torch's DistributedDataParallel or DataParallel. Any other module is returned unchanged."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    found: torch.nn.Module = model
    while isinstance(found, (DataParallel, DistributedDataParallel)):
        found = found.module
    return found


def device_of(model: torch.nn.Module) -> torch.device:
    """Return the device that holds all tensors of a model. Raises ConfigurationError if it has none or several."""
    found = sorted({str(value.device) for _, value in (*tensor_names.parameters(model), *tensor_names.buffers(model))})
    device = next(model.parameters()).device
    if len(found) > 1:
        raise ConfigurationError(f"the model lies on {' and '.join(found)}: predictions are for models on one device")
    if device.type not in ("cpu", "cuda"):
        raise ConfigurationError(f"the model lies on {device}: move it to the processor, or to a CUDA device")
    return device


@contextmanager
def undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Restore the model, its gradients and the random generators of Python, NumPy and torch when the context ends.

    The generators of CUDA are restored too if CUDA is in use. Inside the context, the model has no gradients, losses have
    graphs even if the caller has disabled gradients, and the current CUDA device is the model's device.
    """
    import torch

    snapshot = model_tensors.ModelSnapshot(model)
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        place = device_of(model)
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.cuda.device(place) if place.type == "cuda" else nullcontext(),
        ):
            yield
    finally:
        snapshot.restore()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        if devices:
            torch.cuda.set_rng_state_all(devices)


def _copied(value: Any, name: str) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise ConfigurationError(f"the {name} cannot be copied, and copies are measured: {in_one_line(error)}") from error


def _tensors(batch: Batch) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch, including those inside tuples, lists and mappings."""
    import torch

    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, (Mapping, tuple, list)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(part)


def _kind(value: object) -> str:
    return f"an object of {type(value).__name__}"
