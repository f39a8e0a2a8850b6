"""Only the weights of a run: the start of another run from them, and a file for use elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from psnode.cli import main
from psnode.config import Config
from psnode.jobs.job import run
from psnode.tasks.classification import Classification

COMMON: dict[str, Any] = {"scheme": "dense", "local": 1, "threads": 1, "batch_size": 16, "tensorboard": False, "quiet": True}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with checkpoints after 4 and 8 steps."""
    train_dir = tmp_path_factory.mktemp("earlier") / "run"
    run(Config(train_dir=train_dir, max_steps=8, eval_freq=4, lr=0.05, seed=5, **COMMON))
    return train_dir


def weights(train_dir: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(train_dir / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


def sgd_step(start: dict[str, torch.Tensor], lr: float) -> tuple[float, dict[str, torch.Tensor]]:
    """Return loss and weights of one plain PyTorch step from `start`, on the first batch that seed 1 gives to a single worker."""
    task = Classification("LeNet", "digits", seed=1)
    model = task.model()
    model.load_state_dict(start)
    seeds = np.random.SeedSequence((1, int.from_bytes(b"shuf", "big"), 0))
    order = np.random.Generator(np.random.PCG64(seeds)).permutation(len(task.train_data()))
    images, labels = task.train_data().batch(order[:16], None)
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach()), model.state_dict()


@pytest.mark.parametrize("source", ["run", "checkpoint", "file"])
def test_a_run_begins_with_the_weights_of_another_and_no_momentum(source: str, earlier: Path, tmp_path: Path) -> None:
    step = {"run": 8, "checkpoint": 4, "file": 4}[source]
    folder = earlier / "checkpoints" / "step-00000004"
    place = {"run": earlier, "checkpoint": folder, "file": folder / "model.safetensors"}[source]
    assert run(Config(train_dir=tmp_path, max_steps=1, lr=0.05, init_from=place, **COMMON)) == 0
    loss, expected = sgd_step(weights(earlier, step), 0.05)
    [record] = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert record["loss"] == pytest.approx(loss, rel=1e-5)
    found = weights(tmp_path, 1)
    assert all(torch.allclose(found[name], value, atol=1e-6) for name, value in expected.items())


def begin(capfd: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Start a run that is refused, and return its error line."""
    assert main(["train", "--local", "1", "--no-tensorboard", *map(str, words)]) == 2
    [line] = capfd.readouterr().err.splitlines()
    return line


def test_weights_of_another_network_are_refused_before_anything_is_written(
    earlier: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train_dir = tmp_path / "run"
    line = begin(capfd, "--network", "FC", "--init-from", earlier, "--train-dir", train_dir)
    assert f"--init-from {earlier} does not fit the network: it lacks " in line and " more" in line
    state = weights(earlier, 8)
    name = next(iter(state))
    save_file({**state, name: state[name][:1].clone()}, tmp_path / "cut.safetensors")
    line = begin(capfd, "--init-from", tmp_path / "cut.safetensors", "--train-dir", train_dir)
    assert f"{name} is torch.float32 of shape {(1, *state[name].shape[1:])} in it and torch.float32 of shape" in line
    line = begin(capfd, "--init-from", tmp_path / "none", "--train-dir", train_dir)
    assert "none cannot be read (No such file or directory): name a run, a checkpoint, or a safetensors file" in line
    assert not train_dir.exists()
    line = begin(capfd, "--init-from", earlier, "--resume", "--train-dir", earlier)
    assert "--init-from has no meaning with --resume" in line


@pytest.mark.parametrize(("which", "step"), [(None, 8), ("4", 4), ("best", 4)])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_an_exported_file_is_the_state_dict(
    which: str | None, step: int, suffix: str, earlier: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    records = [{"step": 4, "loss": 1.0, "top1": 0.9}, {"step": 8, "loss": 0.9, "top1": 0.8}]
    (earlier / "evaluations.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    output = tmp_path / "out" / f"model{suffix}"
    assert main(["export", str(earlier), "--output", str(output), *([] if which is None else ["--checkpoint", which])]) == 0
    assert capfd.readouterr().out.startswith(f"step {step}: 8 tensors, 1.7")
    found = load_file(output) if suffix == ".safetensors" else torch.load(output, weights_only=True)  # noqa: TID251
    expected = weights(earlier, step)
    assert found.keys() == expected.keys() and all(torch.equal(found[name], value) for name, value in expected.items())
    Classification("LeNet", "digits", seed=1).model().load_state_dict(found)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--checkpoint", "5"], "has no 5 checkpoint: existing ones: 4, 8"),
        (["--output", "model.onnx"], "--output model.onnx must end in .safetensors, or in .pt for torch.load"),
    ],
)
def test_what_cannot_be_exported_is_told_in_a_line(
    words: list[str], told: str, earlier: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(earlier), *words]) == 2
    assert told in capfd.readouterr().err
