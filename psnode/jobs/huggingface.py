"""Export of a run's weights to a folder of Hugging Face transformers: config.json and safetensors, for from_pretrained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psnode.config.load import check_trust
from psnode.config.names import PASSED, locate_task
from psnode.errors import CheckpointError, ConfigurationError, in_one_line, installing
from psnode.records.directory import saved_config
from psnode.records.weights import weights_of
from psnode.tasks import model_tensors, tensor_names
from psnode.tasks.loading import make_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn


def export_folder(
    train_dir: Path, output: Path, which: str | None, *, task: str | None, trust_run: bool, model_config: Path | None = None
) -> tuple[int, int]:
    """Write a checkpoint of a run to the folder `output`. Return its step and the number of tensors in the run's model.

    `model_config`: the config.json of the run's model, or the folder that contains it. With this file, transformers makes
    the model, and no other code is executed. Without it, the task must be executed, because only the task knows the
    model's configuration. Then either `task` names the task, or `trust_run` permits the execution of the code that the
    run's record names. The model, or exactly one part of it, must be a model of transformers, whose save_pretrained writes
    the folder. Raises ConfigurationError if the task has no such model, and CheckpointError.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigurationError(f"--output {output} exists already: name a folder that is new or empty")
    config = saved_config(train_dir)
    if model_config is None:
        _require_task(train_dir, config.task, named=task is not None)
        check_trust(train_dir, config.to_dict(), () if task is None else ("task",), trusted=trust_run, used=("task",))
    if task is not None:
        config = replace(config, task=locate_task(task))
    step, tensors = weights_of(train_dir, which)
    model = make_task(config).model() if model_config is None else _of_config(model_config, config.task, tensors)
    try:
        model_tensors.load(model, tensors)
    except RuntimeError as error:
        of = "the task's model" if model_config is None else f"the model of {model_config}"
        raise ConfigurationError(f"the weights of {train_dir} do not fit {of}: {str(error).splitlines()[-1].strip()}") from None
    try:
        part = _transformer(model)
        compiled = tensor_names.of_model(part) is not str
        part.save_pretrained(output, **({"state_dict": tensor_names.state(part)} if compiled else {}))
    except OSError as error:
        raise CheckpointError(f"{output} cannot be written: {error.strerror or error}") from error
    return step, len(tensors)


def _require_task(train_dir: Path, task: str | None, *, named: bool) -> None:
    """Raise ConfigurationError if the run is that of a session and no task is `named`.

    Without a task, only the session's program can make the model.
    """
    if task is not None and task.startswith(PASSED) and not named:
        raise ConfigurationError(
            f"the run in {train_dir} trains {task.removeprefix(PASSED)}, which its own program made: name its config.json by "
            "--config DIR, or call model.save_pretrained(DIR) in the program, after the session's block; or write the state "
            "dict, --format state-dict --output NAME.pt"
        )


def _of_config(place: Path, task: str | None, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """Return a model of transformers made from the config.json in `place`.

    Its class is the one that `task` names if transformers has this class, otherwise the one named in the config.json. `task`:
    the task in the run's record. The model gets the dtype of the run's `tensors`. Only code of transformers is executed.
    Raises ConfigurationError if no model can be made from the config.json.
    """
    from psnode.tasks.torchvision_ops import import_torchvision

    try:
        import_torchvision()  # before transformers does: torchvision's operators may be built for another torch
        import transformers
    except ImportError as error:
        raise ConfigurationError(f"--config needs the package transformers ({error}): {installing('frameworks')}") from None
    folder = place if place.is_dir() else place.parent
    if not (folder / "config.json").is_file():
        raise ConfigurationError(f"--config {place} has no config.json of a model: config.save_pretrained(DIR) writes one")
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"--config {place} is not that of a model of transformers: {in_one_line(error)}") from None
    names = [(task or "").removeprefix(PASSED), *(getattr(config, "architectures", None) or [])]
    found = [kind for name in names if isinstance(kind := getattr(transformers, str(name), None), type)]
    kinds = [
        kind for kind in found if issubclass(kind, transformers.PreTrainedModel) and kind is not transformers.PreTrainedModel
    ]
    if not kinds:
        raise ConfigurationError(
            f"--config {place} names no class of transformers under architectures, and the run trains {names[0] or 'a task'}: "
            'add the class, "architectures": ["GPT2LMHeadModel"], or export the task'
        )
    try:
        made: nn.Module = kinds[0](config)
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(f"--config {place} is not that of a {kinds[0].__name__}: {in_one_line(error)}") from None
    kept = {value.dtype for value in tensors.values() if value.is_floating_point()}
    return made.to(kept.pop()) if len(kept) == 1 else made


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
