"""Export of a run's weights to a folder of Hugging Face transformers: config.json and safetensors, for from_pretrained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psnode.config.load import check_trust
from psnode.config.names import locate_task
from psnode.errors import CheckpointError, ConfigurationError
from psnode.records.directory import saved_config
from psnode.records.weights import weights_of
from psnode.tasks import inventory, tensor_names
from psnode.tasks.loading import make_task

if TYPE_CHECKING:
    from torch import nn


def export_folder(train_dir: Path, output: Path, which: str | None, *, task: str | None, trust_run: bool) -> tuple[int, int]:
    """Write a checkpoint of a run to the folder `output`, and return its step and the number of tensors in the run's model.

    The task must be executed, because only the task knows the model's configuration: `task` names it, or `trust_run` allows the
    code named in the run's record. If the model, or exactly one part of it, is a model of transformers, its own save_pretrained
    writes the folder. Raises ConfigurationError if there is no such model, and CheckpointError.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigurationError(f"--output {output} exists already: name a folder that is new or empty")
    config = saved_config(train_dir)
    check_trust(train_dir, config.to_dict(), () if task is None else ("task",), trusted=trust_run, used=("task",))
    if task is not None:
        config = replace(config, task=locate_task(task))
    step, tensors = weights_of(train_dir, which)
    model = make_task(config).model()
    try:
        inventory.load(model, tensors)
    except RuntimeError as error:
        raise ConfigurationError(
            f"the weights of {train_dir} do not fit the task's model: {str(error).splitlines()[-1].strip()}"
        ) from None
    try:
        part = _transformer(model)
        compiled = tensor_names.of_model(part) is not str
        part.save_pretrained(output, **({"state_dict": tensor_names.state(part)} if compiled else {}))
    except OSError as error:
        raise CheckpointError(f"{output} cannot be written: {error.strerror or error}") from error
    return step, len(tensors)


def _transformer(model: nn.Module) -> Any:
    """Return the outermost part of `model` that transformers or peft can write.

    Raises ConfigurationError unless there is exactly one such part.
    """
    found = {name: part for name, part in model.named_modules() if hasattr(part, "save_pretrained")}
    outer = [
        part
        for name, part in found.items()
        if not any(name.startswith(f"{other}.") or not other for other in found if other != name)
    ]
    if len(outer) != 1:
        raise ConfigurationError(
            f"the run's model holds {len(outer) or 'no'} models of transformers, and a folder is for one: write its state dict "
            "to a file by --output NAME.safetensors"
        )
    return outer[0]
