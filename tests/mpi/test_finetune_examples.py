"""examples/finetune*.py: all three programs train, and the session takes the same steps as the plain script."""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import random
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from psnode.cli.commands import main
from psnode.tasks.torchvision_ops import import_torchvision
from tests.forking import FORKING
from tests.test_docs import FENCE, python_blocks

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed: pip install transformers", allow_module_level=True)

pytestmark = pytest.mark.serial
ROOT = Path(__file__).parents[2]
PLAIN, SESSION, HOOK = (ROOT / "examples" / f"finetune{form}.py" for form in ("", "_session", "_hook"))
RUNNER = Path(__file__).with_name("finetune_runner.py")
PAGE = ROOT / "docs" / "fine-tuning.md"
TRAINER = """
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=16, n_embd=64, n_layer=1, n_head=2))
rows = torch.arange(16).add(torch.arange(64)[:, None]).remainder(256)
data = [{"input_ids": row, "labels": row} for row in rows]
arguments = TrainingArguments(sys.argv[1], max_steps=8, per_device_train_batch_size=4, use_cpu=True, report_to=[],
                              ddp_backend="gloo", logging_steps=1, save_strategy="no", learning_rate=1e-2)
exec(compile(open(sys.argv[2]).read(), "page", "exec"))
losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
assert losses[-1] < losses[0] - 0.5, losses
assert coded.state.sent_bytes < 8 * 4 * sum(value.numel() for value in model.parameters()) / 5, coded.state.sent_bytes
weights = torch.cat([value.detach().flatten() for value in model.parameters()])
found = [torch.empty_like(weights) for _ in range(2)]
torch.distributed.all_gather(found, weights)
assert torch.equal(*found)
print("trained")
"""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Return a file of words drawn by a seed: 112 rows of tokens to train on, and 12 to evaluate on."""
    path, draw = tmp_path / "text.txt", random.Random(1)
    words = ["".join(draw.choices("aeiorstln", k=draw.randint(2, 7))) for _ in range(40)]
    path.write_bytes(" ".join(draw.choices(words, k=3000)).encode()[: 64 * 124])
    return path


def load(path: Path) -> ModuleType:
    import_torchvision()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Drawn(torch.utils.data.TensorDataset):
    """The data set of the session; it records the indices of the examples that are drawn."""

    indices: list[int] = []  # shared by all instances

    def __getitem__(self, index: int) -> Any:
        self.indices.append(index)
        return super().__getitem__(index)


class Replay:
    """A loader that yields the batches that the session has drawn, in the same order."""

    def __init__(self, data: torch.utils.data.TensorDataset, batch_size: int, **options: Any) -> None:
        self._batches = iter(torch.tensor(Drawn.indices).view(-1, batch_size))
        self._data = data

    def __len__(self) -> int:
        return 14  # 112 rows, 8 in a batch

    def __iter__(self) -> Iterator[Any]:
        return (self._data[next(self._batches)] for _ in range(len(self)))


def numbers(out: str) -> list[list[float]]:
    """Return the numbers in each line that the script itself has printed."""
    lines = [line for line in out.splitlines() if re.match(r"(step \d+: lr|epoch \d+: loss)", line)]
    return [[float(number) for number in re.findall(r"[\d.]+(?:e-\d+)?", line)] for line in lines]


def test_the_session_takes_the_steps_of_the_plain_script(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for name, value in {
        "PSNODE_SCHEME": "dense", "PSNODE_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.utils.data, "TensorDataset", Drawn)
    load(SESSION).main(text, tmp_path / "session")
    ours = numbers(capsys.readouterr().out)
    del Drawn.indices[3 * 112 :]
    plain = load(PLAIN)
    monkeypatch.setattr(plain, "DataLoader", Replay)
    plain.main(text, tmp_path / "plain")
    theirs = numbers(capsys.readouterr().out)
    assert len(theirs) == 5  # steps 10 and 20 of 21, and three epochs
    for line, expected in zip(ours, theirs, strict=True):
        assert line == pytest.approx(expected, rel=1e-2)
    assert theirs[-1][1] < theirs[0][1]  # the losses after the last and the first epoch
    assert main(["export", str(tmp_path / "session" / "run"), "--checkpoint", "best", "--format", "huggingface",
                 "--config", str(tmp_path / "session"), "--output", str(tmp_path / "best")]) == 0  # fmt: skip
    from transformers import GPT2LMHeadModel

    best, kept = (GPT2LMHeadModel.from_pretrained(tmp_path / name).state_dict() for name in ("best", "session"))
    assert all(torch.equal(best[name], value) for name, value in kept.items())  # dense: the worker's weights are the master's


@pytest.mark.long
def test_the_session_trains_on_two_workers(mpirun: Any, text: Path, tmp_path: Path) -> None:
    job = mpirun(3, [RUNNER, SESSION, text, tmp_path / "out"])
    assert job.code == 0, job
    lines = [json.loads(line) for line in (tmp_path / "out" / "run" / "evaluations.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6, 9]  # 112 rows, 2 workers x 2 x 8
    assert (tmp_path / "out" / "model.safetensors").is_file()


def torchrun(*words: Path | str) -> str:
    python = FORKING.python()
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHON_EXEC": python}  # the ranks' interpreter
    done = subprocess.run([*command, RUNNER, *words], env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_hook_trains_on_two_ranks(text: Path, tmp_path: Path) -> None:
    assert [line[0] for line in numbers(torchrun(HOOK, text, tmp_path / "out"))] == [1, 2, 3]  # epochs; 9 steps in all
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.long
def test_the_recipe_for_trainer_codes_its_gradients(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRAINER)
    [recipe] = python_blocks(PAGE)
    (tmp_path / "recipe.py").write_text(recipe)
    assert torchrun(tmp_path / "program.py", tmp_path / "out", tmp_path / "recipe.py").count("trained") == 2


@pytest.mark.parametrize(("form", "most"), [(SESSION, 20), (HOOK, 5)])
def test_the_page_shows_the_lines_that_change(form: Path, most: int) -> None:
    shown = [block for _, kind, block in FENCE.findall(PAGE.read_text()) if kind == "diff"]
    old, new = (path.read_text().split('"""', 2)[2].strip().splitlines() for path in (PLAIN, form))
    expected = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
    assert [line for line in expected if not line.startswith("@@")] in [block.splitlines() for block in shown]
    bare = {line.strip() for line in old}
    added = [line for line in new if line.strip() and line.strip() not in bare]
    assert 0 < len(added) <= most
