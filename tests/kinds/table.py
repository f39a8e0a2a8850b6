"""The rows of docs/models.md: a kind of model or feature, a model of this kind, and psnode's verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.kinds import models

SUPPORTED, WAITS, REFUSED = "supported", "supported, waits", "refused"


@dataclass(frozen=True)
class Kind:
    """A row of docs/models.md. `name`: the first column of the page; `refusal`: a pattern of the error message; `settings`:
    settings that the run needs.
    """

    name: str
    make: Callable[[], nn.Module]
    verdict: str = SUPPORTED
    refusal: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def _refused(name: str, make: Callable[[], nn.Module], refusal: str, **settings: Any) -> Kind:
    return Kind(name, make, REFUSED, refusal, settings)


def _around(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: models.Around(make())


def _normed(wrap: Callable[[nn.Linear], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: models.Around(wrap(models.linear()))


KINDS = (
    Kind("linear layers", _around(models.linear)),
    Kind("convolutions and pooling", models.convolutions),
    Kind("ParameterList, ParameterDict", models.Lists),
    Kind("batch norm", _around(lambda: nn.BatchNorm1d(models.WIDTH))),
    Kind("batch norm in eval", models.EvalNorm),
    Kind("SyncBatchNorm", _around(lambda: nn.SyncBatchNorm(models.WIDTH))),
    Kind("layer norm, group norm", lambda: models.sequential(nn.LayerNorm(models.WIDTH), nn.GroupNorm(2, models.WIDTH))),
    Kind("dropout", lambda: models.sequential(models.linear(), nn.Dropout(0.3))),
    Kind("layers skipped at random", models.Stochastic),
    Kind("tied weights", models.Tied),
    Kind("a module called twice", models.Twice),
    Kind("a weight used outside its module", models.Outside),
    Kind("weights in a list of one's own", models.Held),
    Kind("parameters that the loss does not use", models.Unused),
    Kind("frozen layers", models.Frozen),
    Kind("a frozen bfloat16 base with adapters", models.Adapter),
    Kind("autocast", models.Autocast),
    Kind("checkpointing", partial(models.Checkpointed, False)),
    Kind("checkpointing of a part used twice", partial(models.Checkpointed, False, 2)),
    Kind("reentrant checkpointing", partial(models.Checkpointed, True)),
    Kind("reentrant checkpointing of a part used twice", partial(models.Checkpointed, True, 2)),
    Kind("a gradient penalty (double backward)", models.Penalty),
    Kind("a loss that reads the weights", models.Regularised),
    Kind("several backward passes a step", _around(models.linear), settings={"batches_per_step": 2}),
    Kind("hooks on gradients and modules", models.Hooked),
    Kind("model.compile()", models.whole_compiled, WAITS),
    Kind("torch.compile(module)", models.part_compiled, WAITS),
    Kind("@torch.compile on a function", models.FunctionCompiled, WAITS),
    Kind("@torch.jit.script on a function", models.FunctionScripted, WAITS),
    Kind("torch.jit.script(module)", models.module_scripted, WAITS),
    Kind("torch.jit.trace", models.module_traced, WAITS),
    Kind("torch.vmap over weights", models.Mapped),
    Kind("torch.func.functional_call", models.Functional),
    Kind("LSTM", partial(models.Recurrent, nn.LSTM)),
    Kind("flatten_parameters in every forward pass", partial(models.Recurrent, nn.GRU, flatten=True)),
    Kind("multi-head attention", models.Attention),
    Kind("a transformer's encoder layer", models.transformer),
    Kind("embedding", models.Embedded),
    Kind("spectral norm", _normed(parametrizations.spectral_norm)),
    Kind("weight norm", _normed(parametrizations.weight_norm)),
    Kind("orthogonal weights", _normed(parametrizations.orthogonal)),
    Kind("a moving average of weights in a buffer", models.Averaged),
    Kind("integer buffers", lambda: models.Buffered(torch.arange(8).flip(0))),
    Kind("complex buffers", lambda: models.Buffered(torch.polar(torch.ones(4), torch.arange(4.0)))),
    Kind("a buffer that the first forward pass makes", partial(models.Masked, None, persistent=True)),
    Kind("a buffer that changes its shape", partial(models.Masked, torch.ones(1), persistent=False)),
    Kind("a saved buffer that changes its shape", partial(models.Masked, torch.ones(1), persistent=True, after=5)),
    _refused(
        "a saved buffer that changes its type",
        partial(models.Masked, torch.ones(1, dtype=torch.float16), persistent=True, after=5),
        r"buffer mask began as torch\.float16 of shape \(1,\) and is torch\.float32 of shape \(8,\)",
    ),
    _refused("a buffer that is a function of the data", models.Remembering, "buffer last_batch takes another", batch_size=8),
    _refused("Lazy modules", lambda: models.Around(nn.LazyLinear(models.WIDTH)), r"inner\.weight has no shape yet"),
    _refused("get_extra_state that is no tensor", models.extra_state, "state dict's inner._extra_state is not a tensor"),
    Kind("autograd.Function that computes with NumPy", partial(models.Foreign, models._ByNumpy)),
    Kind("a kernel that reads a weight by its address", partial(models.Foreign, models._ByAddress)),
    Kind("clamp by Task.constrain", partial(models.Clamped, "constraint")),
    Kind("a constraint that replaces .data", partial(models.Clamped, "constraint with another tensor")),
    Kind("max_norm by Task.constrain", partial(models.Embedded, constrained=True)),
    _refused("nn.Embedding(max_norm=)", partial(models.Embedded, max_norm=0.5), r"table\.weight.* Task\.constrain"),
    _refused("clamp_() in the forward pass", partial(models.Clamped, "in place"), r"writes parameter weight.* Task\.constrain"),
    _refused("weight.data.clamp_()", partial(models.Clamped, "by .data"), r"writes parameter weight.* Task\.constrain"),
    _refused("a teacher of frozen parameters, moved in the forward pass", models.Teacher, r"teacher\.weight.* as a buffer"),
    _refused("a weight written through NumPy", partial(models.Clamped, "by numpy"), r"writes parameter weight"),
    _refused("weight.data = another tensor", partial(models.Clamped, "another tensor"), r"parameter weight.* Task\.constrain"),
    _refused("two parameters in one memory", models.OneMemory, r"one\.weight and two\.weight share memory"),
    _refused("a view kept of a weight's memory", models.Alias, r"memory.* kept"),
    _refused("sparse gradients", partial(models.Embedded, sparse=True), r"table\.weight has sparse gradients"),
    _refused("trained weights that are not finite", models.Unfinished, r"parameter unused holds nan"),
    _refused("float64 weights", lambda: models.Around(models.linear()).double(), "float32"),
)
