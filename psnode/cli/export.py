"""The command `psnode export`, which writes the weights of a run to a file, or to a folder for from_pretrained."""

from __future__ import annotations

from pathlib import Path

import click

from psnode.cli.debugging import debuggable
from psnode.errors import ConfigurationError


@click.command(short_help="Write the weights of a run to a file, or to a Hugging Face folder.")
@click.argument("train_dir", type=click.Path(path_type=Path), metavar="RUN")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="PATH",
    help="A .safetensors or .pt file [RUN/model.safetensors]; with --format huggingface a folder [RUN/huggingface].",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(["state-dict", "huggingface"]), default="state-dict", show_default=True,
    help="Write a file for load_state_dict, or a folder for from_pretrained of transformers.",
)  # fmt: skip
@click.option(
    "--checkpoint", "which", metavar="STEP|best", help="Export the checkpoint of a step, or the best evaluated one [the newest]."
)
@click.option("--task", metavar="FILE|MODULE", help="Code of the task that the run trains, for huggingface; is executed.")
@click.option(
    "--config", "model_config", type=click.Path(path_type=Path), metavar="DIR",
    help="The model's config.json or its folder, for huggingface: exports a session's model, and executes no task.",
)  # fmt: skip
@click.option(
    "--trust-run/--no-trust-run", default=False, help="Execute the task code named in the run's record, for huggingface."
)
@debuggable
def export(
    train_dir: Path,
    output: Path | None,
    form: str,
    which: str | None,
    task: str | None,
    model_config: Path | None,
    trust_run: bool,
) -> int:
    """Write the weights of a checkpoint of RUN to a file for other programs."""
    if form == "huggingface":
        from psnode.jobs.huggingface import export_folder

        output = output or train_dir / "huggingface"
        step, count = export_folder(train_dir, output, which, task=task, trust_run=trust_run, model_config=model_config)
        size = sum(path.stat().st_size for path in output.iterdir())
    else:
        from psnode.records.weights import export as write

        if task is not None or trust_run or model_config is not None:
            raise ConfigurationError(
                "--task, --config and --trust-run are for --format huggingface: a state dict needs no code, leave them out"
            )
        output = output or train_dir / "model.safetensors"
        step, count = write(train_dir, output, which)
        size = output.stat().st_size
    click.echo(f"step {step}: {count} tensors, {size / 1e6:.2f} MB in {output}")
    return 0
