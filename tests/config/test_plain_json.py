"""JSON files and outputs are strict JSON, without values that other programs' readers refuse."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import psnode
from psnode.cli import main
from psnode.config import Config
from psnode.config.plain_json import to_json
from psnode.evaluator import follow
from psnode.records.metrics import read_records
from psnode.report.run import read
from psnode.tasks.classification import Classification

ROOT = Path(__file__).resolve().parents[2]
HOMES = ("psnode/config/plain_json.py",)
# Messages between processes of one job or machine, in which losses and metrics keep values such as NaN, since only Python reads
# them; and a program that is sent to hosts unchanged and uses only the standard library
OTHERS = {"psnode/protocol/messages.py": 1, "psnode/jobs/hosts/agent.py": 1}


def refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def strictly(text: str | bytes) -> Any:
    return json.loads(text, parse_constant=refuse)


def test_numbers_that_are_not_finite_are_null_wherever_they_stand() -> None:
    value = {"a": math.nan, "b": [1.5, math.inf, {"c": (-math.inf, 2)}], "d": "NaN", "e": None}
    assert strictly(to_json(value)) == {"a": None, "b": [1.5, None, {"c": [None, 2]}], "d": "NaN", "e": None}
    usual = {"a": 1.25, "b": ["é", {"c": [None, 2]}]}
    assert to_json(usual, indent=2, ensure_ascii=False) == json.dumps(usual, indent=2, ensure_ascii=False)


def test_json_is_written_in_one_place() -> None:
    found: dict[str, int] = {}
    for path in (*(ROOT / "psnode").rglob("*.py"), *(ROOT / "tools").rglob("*.py")):
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute | ast.Name)
            and ast.unparse(node) in ("json.dump", "json.dumps", "dumps", "json.JSONEncoder")
        ]
        name = str(path.relative_to(ROOT))
        if calls and name not in HOMES:
            found[name] = len(calls)
    assert found == OTHERS


class Odd(Classification):
    """A task with metrics that are not finite, and with a loss of NaN in evaluation."""

    def __init__(self) -> None:
        super().__init__("FC", "digits", seed=1)

    def metrics(self, outputs: Any, batch: Any) -> dict[str, float]:
        return {**super().metrics(outputs, batch), "perplexity": math.inf, "f1": math.nan}

    def loss(self, model: torch.nn.Module, batch: Any) -> Any:
        loss, outputs = super().loss(model, batch)
        return (loss, outputs) if model.training else (loss * math.nan, outputs)


def test_every_file_of_a_run_is_json_and_so_is_what_commands_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings: dict[str, Any] = {
        "scheme": "dense",
        "local": 1,
        "threads": 1,
        "tensorboard": False,
        "quiet": True,
        "timeline": True,
    }
    train_dir = tmp_path / "run"
    assert psnode.run(Odd(), Config(train_dir=train_dir, max_steps=4, record_history=True, **settings)) == 0
    assert follow(train_dir, once=True, task=Odd()) == 0
    texts = [*train_dir.rglob("*.json"), *train_dir.rglob("*.jsonl")]
    assert {"config.json", "metrics.jsonl", "evaluations.jsonl", "summary.json", "timeline.json"} <= {path.name for path in texts}
    for path in texts:
        for text in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            strictly(text)
    [record] = read_records(train_dir / "evaluations.jsonl")
    assert (record["loss"], record["metrics"]["f1"], record["metrics"]["perplexity"]) == (None, None, None)

    capsys.readouterr()
    assert main(["runs", str(train_dir), "--json"]) == 0
    strictly(capsys.readouterr().out)
    for name in ("metrics.jsonl", "evaluations.jsonl"):  # as earlier versions wrote these files
        path = train_dir / name
        path.write_text(path.read_text().replace("null", "NaN"))
    assert read(train_dir).problems == []
    assert main(["runs", str(train_dir), "--json"]) == 0
    strictly(capsys.readouterr().out)
    assert main(["report", str(train_dir), "--output", str(tmp_path / "page.html")]) == 0
    assert follow(train_dir, once=True, task=Odd()) == 0
