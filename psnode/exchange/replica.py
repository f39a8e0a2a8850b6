"""A worker's model, its weights laid out as one flat vector in the order of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
import xxhash
from torch import nn

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Floats
from psnode.errors import ConfigurationError
from psnode.exchange.device.codecs import Change
from psnode.exchange.device.placing import changes_on
from psnode.exchange.device.trust import Verdict
from psnode.plan.groups import Plan, Segment, Tensor
from psnode.tasks import names
from psnode.tasks.inventory import bits, give_own_memory, load, norm_statistics, persistent_buffers, same


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that take part in the exchange, in state-dict order. ConfigurationError unless all are float32."""
    found = {name: parameter for name, parameter in names.parameters(model) if parameter.requires_grad}
    for name, parameter in found.items():
        if parameter.dtype is not torch.float32:
            raise ConfigurationError(f"parameter {name} is {parameter.dtype}: psnode exchanges float32 weights only")
    return found


def describe(model: nn.Module) -> list[Tensor]:
    """The trainable tensors of `model`, in state-dict order."""
    return [Tensor(name, tuple(parameter.shape)) for name, parameter in trainable(model).items()]


def written(name: str, *, trained: bool = True) -> ConfigurationError:
    """Error for a model that changes its parameter `name`."""
    if not trained:
        return ConfigurationError(
            f"the model itself writes parameter {name}, which is not trained: the master would not hear of it; "
            "keep it as a buffer (register_buffer), which checkpoints take from the workers (docs/models.md)"
        )
    return ConfigurationError(
        f"the model itself or its loop writes parameter {name}, and the master's next weights would undo that: move it into "
        "Task.constrain, or constrain= of a session, which the master calls after each update (docs/models.md)"
    )


def _is_host(device: torch.device) -> bool:
    return device.type == "cpu"


class Replica:
    """The model as views of `weights`.

    On a GPU they have a twin there, and the model looks at the twin; `publish` copies.
    `weights` is this worker's copy y of the published weights: float32, `plan.size` long, on the host. Of segments that are
    changed on the device it only holds what came whole.
    """

    def __init__(self, model: nn.Module, plan: Plan, device: torch.device) -> None:
        self.model = model.to(device)
        self.device = device
        self._on_host = _is_host(device)
        host = torch.empty(plan.size, pin_memory=device.type == "cuda")
        self._weights = host if self._on_host else torch.empty(plan.size, device=device)
        self._host = host
        self.weights: Floats = host.numpy()
        self.parameters = trainable(model)
        self._views: dict[str, torch.Tensor] = {}
        for name, where in plan.slices().items():
            parameter = self.parameters[name]
            self._weights[where] = parameter.detach().reshape(-1)
            parameter.data = self._views[name] = self._weights[where].view(parameter.shape)
            parameter.grad = None
        self._versions = {name: parameter._version for name, parameter in self.parameters.items()}
        self._frozen = {name: value for name, value in names.parameters(model) if not value.requires_grad}
        self._versions |= {name: parameter._version for name, parameter in self._frozen.items()}
        self._host.copy_(self._weights)
        self._changed_there: dict[int, Change] = {}

    @property
    def on_device(self) -> torch.Tensor:
        """The flat vector that the model's parameters are views of."""
        return self._weights

    def change_on_device(self, plan: Plan, codecs: Sequence[Codec]) -> list[Verdict]:
        """Have changes decoded where the model looks, from now on, as far as that gives the host's weights; what was found.

        `codecs`: of the segments' changes. ConfigurationError if CuPy is absent.
        """
        self._changed_there, verdicts = changes_on(plan, codecs, self._weights)
        self._stream = torch.cuda.current_stream(self.device)
        return verdicts

    def is_changed_there(self, segment: Segment) -> bool:
        """True if changes of the segment are decoded where the model looks, and not on the host."""
        return segment.index in self._changed_there

    def change(self, segment: Segment, codec: Codec, payload: Payload) -> None:
        """Add what `payload` decodes to to the segment's weights. PayloadError."""
        if (change := self._changed_there.get(segment.index)) is not None:
            change.add(payload)
            self._order()
        else:
            codec.decode_add(payload, self.weights[segment.start : segment.stop])
            self.publish(segment.start, segment.stop)

    def _order(self) -> None:
        """Have a change that was given to a stream of the model's own be over before other streams use these weights."""
        if (stream := torch.cuda.current_stream(self.device)) != self._stream:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(stream)
            done.synchronize()

    def publish(self, start: int, stop: int) -> None:
        """Make a change of `weights` in a range visible to the model."""
        if not self._on_host:  # not in the background: the next version may be written into `weights` at once
            self._weights[start:stop].copy_(self._host[start:stop])

    def check(self, *, settled: bool = True) -> None:
        """Make sure that the model computes with `weights`, after a step of it.

        Parameters that it moved to other memory are views again, if they hold equal values (flatten_parameters).
        ConfigurationError for one that it wrote, or gave other values. Not `settled`: the weights have changed since, so that
        values say nothing.
        """
        for name, view in self._views.items():
            parameter = self.parameters[name]
            if parameter.data_ptr() != view.data_ptr() or parameter.stride() != view.stride():
                if settled and not (same(parameter, view)):
                    raise written(name)
                parameter.data = view
                self._versions[name] = parameter._version
            elif parameter._version != self._versions[name]:
                raise written(name)
        for name, parameter in self._frozen.items():
            if parameter._version != self._versions[name]:
                raise written(name, trained=False)

    def marks(self) -> dict[str, int]:
        """xxh3_64 of each parameter, to find a write that leaves no trace (weight.data.clamp_())."""
        return {name: xxhash.xxh3_64_intdigest(bits(value)) for name, value in (*self._views.items(), *self._frozen.items())}

    def compare(self, marks: dict[str, int]) -> None:
        """ConfigurationError for a parameter that has changed since `marks` were taken."""
        for name, mark in self.marks().items():
            if mark != marks[name]:
                raise written(name, trained=name in self._views)

    def release(self) -> None:
        """Give the parameters memory of their own, and let go of the vector: no step is to come."""
        self._views.clear()
        give_own_memory(self.model)
        self._weights = self._host = torch.empty(0)
        self.weights = self._host.numpy()

    def digest(self) -> int:
        """xxh3_64 of the weights that the model computes with."""
        weights = self.weights if self._on_host else self._weights.cpu().numpy()
        return xxhash.xxh3_64_intdigest(weights.data)

    def buffers(self) -> dict[str, torch.Tensor]:
        """A copy of the model's persistent buffers (batch-norm statistics), by state-dict name, where the model is.

        ConfigurationError for one that has another dtype than at the first call, or a norm's with another shape.
        """
        own = dict(names.buffers(self.model, aliases=True))
        found = {name: own[name].detach() for name in self._persistent if name in own}
        for name, value in found.items():
            dtype, shape = self._persistent[name]
            if value.dtype is not dtype or (value.shape != shape and name in self._fixed):
                raise ConfigurationError(
                    f"buffer {name} began as {dtype} of shape {tuple(shape)} and is {value.dtype} of shape {tuple(value.shape)} "
                    "now: give it its last type in Task.model(), or register it with persistent=False"
                )
        return {name: value.clone() for name, value in found.items()}

    def load_buffers(self, buffers: dict[str, torch.Tensor]) -> None:
        """Inverse of `buffers`."""
        load(self.model, buffers, strict=False)

    @cached_property
    def _fixed(self) -> frozenset[str]:
        return frozenset(norm_statistics(self.model))

    @cached_property
    def _persistent(self) -> dict[str, tuple[torch.dtype, torch.Size]]:
        known, found = persistent_buffers(self.model), names.buffers(self.model, aliases=True)
        return {name: (value.dtype, value.shape) for name, value in found if name in known}
