"""A session in a program that is started without MPI: the same loop in one process, with one worker."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import psnode
from psnode.plans.groups import Tensor
from psnode.plans.plan_file import PlanFile
from psnode.plans.prediction import Prediction
from psnode.plans.rule import make_plan
from psnode.records.weights import weights_of
from psnode.report.run import read
from tests.mpi.session_program import Points, digest, main, network
from tests.test_docs import python_blocks

ROOT = Path(__file__).parents[2]
DENSE = {"scheme": "dense", "lr": 0.1, "momentum": 0.9, "log_interval": 1, "eval_freq": 0}
PROGRAM = """
import psnode, torch
psnode.session(torch.nn.Linear(2, 2), train_dir="run", max_steps=1)
"""


def train(folder: Path, **plan: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    main(folder, plan)
    found: dict[str, Any] = json.loads((folder / "rank-1.json").read_bytes())
    return found


def test_a_session_follows_the_plan_of_a_file(tmp_path: Path) -> None:
    tensors = [Tensor(name, tuple(parameter.shape)) for name, parameter in network().named_parameters()]
    plan = make_plan(tensors, "qsgd:levels=7", group_by="layer", min_compress_bytes=0)
    assert len(plan.groups) > 1
    PlanFile(plan, {"scheme": "qsgd"}, Prediction(1.0, 1, "a guess")).save(tmp_path / "plan.json")
    train(tmp_path, settings={"lr": 0.1, "max_steps": 9, "plan": str(tmp_path / "plan.json")})
    record = json.loads((tmp_path / "run" / "config.json").read_bytes())
    assert record["plan"] == plan.to_dict()
    assert record["config"]["scheme"] == "qsgd"
    assert json.loads((tmp_path / "run" / "summary.json").read_bytes())["prediction"]["measured"] > 0


def test_losses_and_weights_are_those_of_plain_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = 12  # 64 examples, 8 in a batch: one epoch and a half
    found = train(tmp_path, settings={**DENSE, "max_steps": steps}, evaluate={"3": 0.5, "5": 0.75})
    model, data = network(), Points()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for indices in found["drawn"]:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(data.x[indices]), data.y[indices])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sorted(index for batch in found["drawn"][:8] for index in batch) == list(range(64))
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["loss"] for record in records] == pytest.approx(losses, rel=1e-5)
    step, weights = weights_of(tmp_path / "run", None)
    assert step == found["version"] == steps
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-6)
    model.load_state_dict(weights)
    assert found["digest"] == digest(model)  # the program's model has the weights of the last checkpoint
    assert found["lengths"] == [steps, 8, steps]
    assert found["best"] == [True, False]
    assert weights_of(tmp_path / "run", "best")[0] == 3
    lines = [line for line in capsys.readouterr().err.splitlines() if "started alone" in line]
    assert len(lines) == 1
    assert "one worker and the master in this process, and no exchange over a network" in lines[0]


def test_an_evaluation_that_is_not_finite_is_recorded_and_never_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = train(
        tmp_path, settings={**DENSE, "max_steps": 6}, evaluate={"1": math.nan, "3": 0.5, "4": 0.75, "5": math.nan}
    )  # fmt: skip
    assert found["best"] == [False, True, False, False]
    records = [json.loads(line) for line in (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()]
    assert [record["loss"] for record in records] == [None, 0.5, 0.75, None]
    assert [record["examples"] for record in records] == [64] * 4
    assert {record["seconds"] for record in records} == {None}  # the program does not say
    assert weights_of(tmp_path / "run", "best")[0] == 3
    assert read(tmp_path / "run").best_loss == 0.5
    told = " ".join(line.partition("psnode: ")[2].strip() for line in capsys.readouterr().err.splitlines())
    assert "evaluated  step 5: loss not finite" in told
    assert f"best       step 3: loss 0.5000; {tmp_path}/run/checkpoints/step-00000003/model.safetensors" in told


def test_resume_auto_begins_a_run_and_goes_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coded = {**DENSE, "scheme": "topk:ratio=0.05", "downlink": "topk:ratio=0.1", "min_compress_bytes": 0}
    whole = train(tmp_path / "whole", settings={**coded, "max_steps": 8})
    first = train(tmp_path / "parts", settings={**coded, "max_steps": 5, "resume": "auto"})
    monkeypatch.setenv("PSNODE_RESUME", "auto")
    second = train(tmp_path / "parts", settings={**coded, "max_steps": 8})
    assert first["drawn"] + second["drawn"] == whole["drawn"]
    assert second["digest"] == whole["digest"]


def test_parameter_groups_and_an_optimizer_of_the_programs_own_apply_to_the_masters_copy(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model, x = nn.Linear(4, 2), torch.randn(8, 4)
    plain = nn.Linear(4, 2)
    plain.load_state_dict(model.state_dict())
    groups = [{"params": [model.weight], "weight_decay": 0.5}, {"params": [model.bias], "lr": 0.02}]
    settings: dict[str, Any] = {**DENSE, "threads": 1, "tensorboard": False, "max_steps": 3}
    with psnode.session(model, train_dir=tmp_path / "run", parameter_groups=groups, **settings) as s:
        assert (s.rank, s.size, s.is_master, psnode.rank()) == (1, 2, True, 1)
        for (batch,) in s.batches([(x,)] * 3):
            loss = model(batch).pow(2).mean()
            loss.backward()
            s.step(loss)
    optimizer = torch.optim.SGD(
        [{"params": [plain.weight], "weight_decay": 0.5}, {"params": [plain.bias], "lr": 0.02}], lr=0.1, momentum=0.9
    )
    for _ in range(3):
        optimizer.zero_grad()
        plain(x).pow(2).mean().backward()
        optimizer.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_a_mistake_in_the_loop_ends_the_program_behind_a_checkpoint_and_one_before_it_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="the program's own mistake"):
        train(tmp_path, settings={**DENSE, "max_steps": 9}, fail=[1, 4])
    assert weights_of(tmp_path / "run", None)[0] == 4
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended, psnode.session(nn.Linear(2, 2), train_dir=tmp_path / "other") as s:
        s.batches(iter([torch.zeros(1)]))
    assert ended.value.code == 2
    assert "error: " in (said := capsys.readouterr().err)
    assert "steps_per_epoch" in said


def test_torchrun_is_answered_by_one_line_that_names_the_starters(tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text(PROGRAM)
    for rank, lines in (("0", 1), ("1", 0)):
        variables = {**os.environ, "TORCHELASTIC_RUN_ID": "none", "RANK": rank, "WORLD_SIZE": "2"}
        done = subprocess.run([sys.executable, "prog.py"], cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", lines), done.stderr
        if lines:
            assert "psnode launch -n 2 -- prog.py, mpirun -n 3 python prog.py, or python prog.py" in done.stderr


def test_the_evaluation_of_the_page_keeps_the_best_of_its_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PSNODE_THREADS", "1")
    losses = iter([0.5, 0.25, 0.75])
    data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randint(2, (32,)))
    names: dict[str, Any] = {
        "psnode": psnode, "cross_entropy": functional.cross_entropy, "model": nn.Linear(4, 2),
        "loader": torch.utils.data.DataLoader(data, batch_size=8, shuffle=True), "validation_loss": lambda model: next(losses),
    }  # fmt: skip
    [page] = [block for block in python_blocks(ROOT / "docs" / "own-loop.md") if "s.evaluated" in block]
    exec(compile(page, "page", "exec"), names)  # noqa: S102  # the code of the page
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert told == ["epoch 1: the best so far", "epoch 2: the best so far"]
    assert weights_of(tmp_path / "runs" / "best", "best")[0] == 8  # the end of the second epoch of 4 steps
