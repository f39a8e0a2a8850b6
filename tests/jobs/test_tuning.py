"""psnode tune: its trials, the choice of those that continue, and sweeps that are killed, which lose only time."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from scipy import stats

from psnode import cli
from psnode.errors import ConfigurationError
from psnode.jobs import subprocess_runs
from psnode.jobs.tuning.sampling import draw
from psnode.jobs.tuning.space import Varied, flags, grid, parse
from psnode.jobs.tuning.sweep import Sweep
from psnode.records.metrics import read_records
from tests.forking import FORKING

ROOT = Path(__file__).resolve().parents[2]
JOB = ["--local", "1", "--network", "FC", "--threads", "1", "--batch-size", "8", "--no-tensorboard", "--quiet"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Run trials in this process, which has imported PyTorch, and return the list of their arguments."""
    found: list[list[str]] = []

    def run(arguments: Sequence[str], log: Path | None = None) -> int:
        found.append(list(arguments))
        return cli.main(arguments)

    monkeypatch.setattr(subprocess_runs, "run_psnode", run)
    return found


def tune(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> dict[str, Any]:
    """Return the outcome of `psnode tune WORDS --json -- JOB`."""
    assert cli.main(["tune", *map(str, words), "--json", "--", *JOB]) == code
    return told_in_json(capsys)


def told_in_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the last JSON output, without the lines of evaluators in this process."""
    printed = capsys.readouterr().out
    return dict(json.loads(printed[printed.index("{\n") :]))


def test_lists_are_split_between_values_and_not_inside_specs() -> None:
    texts = ["lr=0.1,0.05", "scheme=qsgd:levels=15,bucket=512,topk:ratio=0.01", "lr=0.05,0.2", "batch-size=8"]
    lr, scheme, size = parse(texts)
    assert lr == Varied("lr", ("0.1", "0.05", "0.2"))
    assert scheme.values == ("qsgd:levels=15,bucket=512", "topk:ratio=0.01")
    assert size == Varied("batch_size", ("8",))
    assert len(grid([lr, scheme, size])) == 6
    assert grid([lr, scheme])[1] == {"lr": "0.1", "scheme": "topk:ratio=0.01"}


def test_ranges_are_of_numbers_and_logarithmic_over_a_factor_of_ten() -> None:
    lr, size, momentum = parse(["lr=1e-3..0.1", "batch_size=8..32", "momentum=0..0.9"])
    assert (lr.low, lr.high, lr.whole, lr.logarithmic) == (1e-3, 0.1, False, True)
    assert (size.low, size.high, size.whole, size.logarithmic) == (8, 32, True, False)
    assert not momentum.logarithmic


def test_a_codec_parameter_goes_into_the_scheme_before_its_further_stages() -> None:
    assert flags({"ratio": "0.1"}, ["--lr", "1"], "topk+fp16") == ["--lr", "1", "--scheme", "topk:ratio=0.1+fp16"]
    values = {"bucket": "64", "scheme": "qsgd:levels=3", "nesterov": "true", "overlap": "no"}
    assert flags(values, [], "atomo") == ["--nesterov", "--no-overlap", "--scheme", "qsgd:levels=3,bucket=64"]


def test_a_codec_parameter_goes_into_the_codec_where_one_is_given() -> None:
    assert flags({"ratio": "0.1", "lr": "1"}, ["--codec", "topk+fp16"], "qsgd", "topk+fp16")[2:] == [
        "--lr", "1", "--codec", "topk:ratio=0.1+fp16",
    ]  # fmt: skip
    own = "/a+b:c/own.py:Own"
    assert flags({"k": "3"}, [], "qsgd", own) == ["--codec", f"{own}:k=3"]
    assert flags({"k": "3"}, [], "qsgd", f"{own}:turned=1+zstd") == ["--codec", f"{own}:turned=1,k=3+zstd"]
    assert flags({"levels": "3", "codec": "qsgd", "scheme": "dense"}, [], "topk") == [
        "--scheme", "dense", "--codec", "qsgd:levels=3",
    ]  # fmt: skip


def test_parameters_of_a_codec_in_a_file_are_varied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: list[list[str]]
) -> None:
    """Check that `--vary octaves=...` sets the parameter in each trial's recorded codec, and that a parameter which the
    codec lacks is refused.
    """
    own = f"{ROOT / 'examples' / 'codec.py'}:Logarithmic"
    job = [*JOB, "--codec", own, "--feedback", "ef"]
    words = ["tune", "--steps", "2", "--metric", "train-loss", "--output", str(tmp_path / "out"), "--json"]
    assert cli.main([*words, "--vary", "octaves=4,20", "--", *job]) == 0
    found = told_in_json(capsys)
    recorded = {
        row["values"]["octaves"]: json.loads((Path(row["train_dir"]) / "config.json").read_text())["scheme"]["codec"]
        for row in found["trials"]
    }
    assert recorded == {"4": "logarithmic:octaves=4", "20": "logarithmic:octaves=20"}
    assert cli.main([*words, "--vary", "levels=4", "--", *job]) == 2
    assert "--vary levels: no setting has that name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--vary", "lr"], "must be --vary NAME=V1,V2"),
        (["--vary", "lr=0.1..0.01"], "numbers LOW < HIGH"),
        (["--vary", "max-steps=1,2"], "tune sets it"),
        (["--vary", "seed=1,2"], "add --seeds 3 to compare means"),
        (["--vary", "lr=-1"], "--lr must be a number above 0"),
        (["--vary", "nothing=1"], "no setting has that name, and no parameter"),
        (["--vary", "scheme=nothing"], "--scheme must be one of"),
        (["--vary", "lr_milestones=1,2"], "a list already"),
        (["--vary", "lr=0.1", "--", "--stop-after", "2"], "tune sets --stop-after itself"),
        (["--vary", "lr=0.1", "--", "--epochs", "2"], "tune sets --epochs itself"),
        (["--vary", "lr=0.1", "--", "launch", "-n", "2"], "write -- launch -n P -- train"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, _, after = " ".join(words).partition(" -- ")
    options = shlex.split(after)
    job = options if options[:1] == ["launch"] else [*JOB, *options]
    assert cli.main(["tune", *before.split(), "--steps", "4", "--output", str(tmp_path / "out"), "--", *job]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("vary", "job", "told"),
    [
        ("lr=0.1,0.2", ["--codec", "fp16"], "downlink: dense, since --codec fp16 "),
        ("codec=fp16,bf16", [], "downlink: dense, since --codec fp16 "),
        ("lr=0.1", ["--codec", "fp16", "--downlink", "fp16"], ""),
        ("lr=0.1", ["--codec", "fp16", "--downlink", "dense"], ""),  # the user's own words
        ("lr=0.1", ["--scheme", "fp16"], ""),
    ],
)
def test_a_codec_that_leaves_the_downlink_dense_is_told_once(
    vary: str, job: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess_runs, "run_psnode", lambda arguments, log=None: 1)  # no trial comes to a result
    words = ["tune", "--vary", vary, "--steps", "2", "--metric", "train-loss", "--output", str(tmp_path)]
    assert cli.main([*words, "--", *JOB, *job]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "downlink: dense" in line]
    assert len(lines) == bool(told)
    assert all(told in line for line in lines)


def test_a_trial_without_a_way_to_start_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "--vary", "lr=0.1", "--steps", "4", "--output", str(tmp_path), "--", "--network", "FC"]) == 2
    assert "add --local P, or write -- launch -n P -- train" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("trials", "halving", "steps", "rungs"),
    [
        (9, 3, 90, [10, 30, 90]),
        (8, 3, 90, [30, 90]),
        (4, 2, 200, [50, 100, 200]),
        (9, 0, 90, [90]),
        (27, 3, 5, [1, 5]),
        (1, 2, 7, [7]),
    ],
)
def test_rungs_are_a_factor_apart_and_end_at_the_steps(trials: int, halving: int, steps: int, rungs: list[int]) -> None:
    assert Sweep(steps, "loss", maximize=False, halving=halving).rungs(trials) == rungs


def test_halving_resumes_the_best_and_says_where_the_others_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: list[list[str]]
) -> None:
    words = ["--vary", "lr=1e-6,0.05,0.01,1e30", "--steps", "8", "--halving", "2", "--metric", "train-loss", "--output", tmp_path]
    found = tune(capsys, *map(str, words))
    by_lr = {row["values"]["lr"]: row for row in found["trials"]}
    assert (by_lr["1e30"]["state"], by_lr["1e30"]["result"]) == ("diverged", None)

    def loss(lr: str, step: int) -> float:
        records = list(read_records(Path(by_lr[lr]["train_dir"]) / "metrics.jsonl"))
        last = [record["loss"] for record in records if step - max(1, round(step / 10)) < record["step"] <= step]
        return fmean(last)

    sound = ["1e-6", "0.05", "0.01"]
    second = sorted(sound, key=lambda lr: loss(lr, 2))[:2]
    last = min(second, key=lambda lr: loss(lr, 4))
    ends = {lr: 8 if lr == last else 4 if lr in second else 2 for lr in sound}
    assert {lr: by_lr[lr]["result_step"] for lr in sound} == ends
    assert {lr: by_lr[lr]["steps"] for lr in sound} == ends
    assert {lr: by_lr[lr]["state"] for lr in sound} == {lr: "done" if lr == last else "dropped" for lr in sound}
    assert all(by_lr[lr]["result"] == loss(lr, ends[lr]) for lr in sound)
    assert ["--resume" in words for words in calls] == [False] * 4 + [True] * 3
    assert f"--lr {last} " in found["best"]

    calls.clear()
    assert tune(capsys, *map(str, words)) == found  # failed trials are not started again either
    assert calls == []

    assert cli.main([*shlex.split(found["best"])[1:], "--print-config"]) == 0
    assert f"lr = {float(last)}" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["cosine", "onecycle"])
def test_a_schedule_that_knows_its_end_is_planned_for_all_steps_and_rungs_are_parts_of_one_run(
    schedule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: list[list[str]]
) -> None:
    job = [*JOB, "--lr-schedule", schedule, "--scheme", "topk"]
    words = ["--vary", "lr=0.05,0.01,1e-6,1e-7", "--steps", "8", "--halving", "2", "--metric", "train-loss"]
    assert cli.main(["tune", *words, "--output", str(tmp_path / "out"), "--json", "--", *job]) == 0
    found = json.loads(capsys.readouterr().out)["trials"]
    assert [row["result_step"] for row in found] == [8, 4, 2, 2]
    best, second = (Path(row["train_dir"]) for row in found[:2])
    assert [("--stop-after" in words, "--resume" in words) for words in calls] == [(True, False)] * 4 + [(True, True)] * 2 + [
        (False, True)
    ]

    whole = tmp_path / "whole"
    assert cli.main(["train", *job, "--lr", found[0]["values"]["lr"], "--max-steps", "8", "--train-dir", str(whole)]) == 0
    assert [[record[key] for key in ("step", "lr", "loss")] for record in read_records(best / "metrics.jsonl")] == [
        [record[key] for key in ("step", "lr", "loss")] for record in read_records(whole / "metrics.jsonl")
    ]
    weights = Path("checkpoints/step-00000008/model.safetensors")
    assert (best / weights).read_bytes() == (whole / weights).read_bytes()
    assert json.loads((second / "summary.json").read_text())["stop_reason"] == "stop-after"


def test_trials_whose_schedule_is_planned_for_other_steps_are_not_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: list[list[str]]
) -> None:
    def sweep(steps: int, schedule: str) -> int:
        words = ["--vary", "lr=0.05", "--steps", str(steps), "--metric", "train-loss", "--output", str(tmp_path / schedule)]
        return cli.main(["tune", *words, "--", *JOB, "--lr-schedule", schedule])

    assert (sweep(2, "constant"), sweep(3, "constant")) == (0, 0)
    assert (sweep(2, "cosine"), sweep(3, "cosine")) == (0, 1)
    assert "holds a run with other settings: choose another --output" in capsys.readouterr().err


def test_a_parameter_is_left_out_for_schemes_without_it_and_the_table_fits_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = [
        "--vary",
        "scheme=topk,dense",
        "--vary",
        "ratio=0.1,0.05",
        "--steps",
        "2",
        "--metric",
        "top1",
        "--output",
        str(tmp_path),
    ]
    assert cli.main(["tune", *words, "--", *JOB]) == 0
    trained = [shlex.join(words) for words in calls if words[0] == "train"]
    assert [words.split("--scheme ")[1].split()[0] for words in trained] == ["topk:ratio=0.1", "topk:ratio=0.05", "dense"]
    lines = capsys.readouterr().out.splitlines()
    title = next(number for number, line in enumerate(lines) if line.startswith("scheme"))
    table = lines[title : title + 4]
    assert table[0].split() == ["scheme", "ratio", "top1", "step", "MB", "sent", "seconds", "state"]
    assert max(map(len, table)) <= 80
    results = [float(line.split()[-5]) for line in table[1:]]
    assert results == sorted(results, reverse=True)


def test_a_metric_that_the_task_does_not_have_is_told_with_those_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: list[list[str]]
) -> None:
    words = ["--vary", "lr=0.1", "--steps", "1", "--metric", "f1", "--output", str(tmp_path)]
    assert cli.main(["tune", *words, "--", *JOB]) == 2
    assert "--metric f1 is not one of the task's: choose from top1, top5, loss, train_loss" in capsys.readouterr().err


def by_lr(found: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Return the state of each trial, and True if the trial has a result, by its learning rate."""
    return {row["values"]["lr"]: (row["state"], row["result"] is not None) for row in found["trials"]}


def test_an_evaluation_that_failed_is_tried_again_and_no_training_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--vary", "lr=0.05,1e-6", "--steps", "4", "--output", tmp_path]
    run, broken = subprocess_runs.run_psnode, True

    def breaks(arguments: Sequence[str], log: Path | None = None) -> int:
        return 1 if broken and arguments[0] == "evaluate" and "lr=0.05" in str(arguments) else run(arguments, log)

    monkeypatch.setattr(subprocess_runs, "run_psnode", breaks)
    found = tune(capsys, *words)
    assert by_lr(found) == {"1e-6": ("done", True), "0.05": ("not evaluated (1)", False)}
    (tmp_path / "lr=0.05" / "failed.json").write_text('{"exit_code": 1, "steps": 4}')  # as earlier versions left it
    broken = False
    calls.clear()
    found = tune(capsys, *words)
    assert [words[0] for words in calls] == ["evaluate"]
    assert by_lr(found) == {"1e-6": ("done", True), "0.05": ("done", True)}
    assert "--lr 0.05 " in found["best"]


def test_more_values_and_another_metric_find_the_best_that_a_sweep_of_its_own_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: list[list[str]]
) -> None:
    """Compare the best trial of a continued sweep with that of a new sweep of all values. The existing trials are beyond the
    first comparison, and have no weights left from its step.
    """
    job = [*JOB, "--keep-last", "1", "--scheme", "dense"]

    def sweep(place: str, metric: str, lrs: str) -> dict[str, Any]:
        words = ["--vary", f"lr={lrs}", "--steps", "8", "--halving", "2", "--metric", metric, "--output", str(tmp_path / place)]
        assert cli.main(["tune", *words, "--json", "--", *job]) == 0
        return told_in_json(capsys)

    def told(found: dict[str, Any]) -> list[tuple[Any, ...]]:
        return [(row["values"], row["state"], row["result_step"], row["result"]) for row in found["trials"]]

    sweep("first", "train-loss", "0.05,1e-6")
    again, fresh = (sweep(place, "loss", "0.05,1e-6,0.001,1e-7") for place in ("first", "fresh"))
    assert told(again) == told(fresh)
    assert "--lr 0.05 " in again["best"]
    calls.clear()
    assert sweep("first", "loss", "0.05,1e-6,0.001,1e-7") == again
    assert calls == []


def test_when_every_trial_fails_there_is_no_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: list[list[str]]
) -> None:
    found = tune(capsys, "--vary", "lr=1e30,1e31", "--steps", "3", "--output", tmp_path, code=1)
    assert found["best"] is None
    assert [row["state"] for row in found["trials"]] == ["diverged", "diverged"]


def test_draws_follow_from_the_seed_and_from_the_results_and_stay_in_their_range() -> None:
    pytest.importorskip("optuna")
    varied = parse(["lr=0.001..1", "batch_size=8..32", "scheme=dense,qsgd"])

    def drawn(seed: int, best: float) -> list[dict[str, str]]:
        earlier: list[tuple[dict[str, str], float | None]] = []
        for _ in range(12):
            values = draw(varied, earlier, seed=seed, maximize=False, blind=4)
            earlier.append((values, None if len(earlier) == 2 else abs(float(values["lr"]) - best)))
        return [values for values, _ in earlier]

    first = drawn(1, 0.5)
    assert first == drawn(1, 0.5)
    assert first[:4] == drawn(1, 0.002)[:4]
    assert first != drawn(1, 0.002)
    assert first[:4] != drawn(2, 0.5)[:4]
    for values in first:
        assert 0.001 <= float(values["lr"]) <= 1
        assert 8 <= int(values["batch_size"]) <= 32
        assert values["scheme"] in ("dense", "qsgd")


def test_without_optuna_a_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[tune\]' in a clone of psnode, or list values"):
        draw(parse(["lr=0.1..1"]), [], seed=1, maximize=False, blind=1)


KILLER = """
import os, signal
from pathlib import Path

class Killer:
    def begin(self, run): ...
    def event(self, step, text): ...
    def end(self, summary): ...
    def scalars(self, step, values):
        once = Path(__file__).with_name("killed-once")
        if step == 30 and not once.exists():
            once.touch()
            os.kill(os.getppid(), signal.SIGKILL)
"""


@pytest.mark.long
@pytest.mark.serial
def test_a_sweep_that_is_killed_goes_on_where_it_was_and_ends_as_a_training_without_a_kill(tmp_path: Path) -> None:
    """Check that a killed sweep continues, and ends as one without a kill. A logger of the first trial kills the command
    with SIGKILL; the job then stops by itself, with a checkpoint.
    """
    (tmp_path / "killer.py").write_text(KILLER)
    job = [*(word for word in JOB if word != "--quiet"), "--eval-freq", "0", "--scheme", "dense"]
    words = [
        "tune",
        "--vary",
        "lr=0.05,0.01",
        "--steps",
        "150",
        "--metric",
        "train-loss",
        "--json",
        "--output",
        "out",
        "--",
        *job,
    ]

    def sweep(python: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [python, "-m", "psnode", *words, "--log-to", "killer.py:Killer"]
        env = {**os.environ, **more, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    assert sweep(sys.executable).returncode == -9  # the parent of a fork would be the server of forks
    python, ranks = FORKING.launching()
    done = sweep(python, **ranks)
    assert done.returncode == 0, done.stderr
    found = {row["values"]["lr"]: row for row in json.loads(done.stdout)["trials"]}
    assert {lr: (row["state"], row["steps"]) for lr, row in found.items()} == {"0.05": ("done", 150), "0.01": ("done", 150)}
    assert (tmp_path / "out" / "lr=0.05" / "output.log").read_text().count("psnode: resumed ") == 1

    whole = tmp_path / "whole"
    assert cli.main(["train", *job, "--lr", "0.05", "--max-steps", "150", "--train-dir", str(whole)]) == 0
    last = [record["loss"] for record in read_records(whole / "metrics.jsonl") if record["step"] > 135]
    assert found["0.05"]["result"] == fmean(last)


def test_trials_with_several_seeds_are_ranked_by_their_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: list[list[str]]
) -> None:
    words = ["--vary", "lr=1e-6,0.05", "--steps", "4", "--metric", "train-loss", "--seeds", "3", "--output", str(tmp_path)]
    found = tune(capsys, *words)
    assert [words[words.index("--seed") + 1] for words in calls] == ["1", "2", "3"] * 2

    def loss(lr: str, seed: int) -> float:
        [*_, last] = read_records(tmp_path / f"lr={lr},seed={seed}" / "metrics.jsonl")
        return float(last["loss"])  # of four steps, the last tenth is the last step

    for row in found["trials"]:
        losses = [loss(row["values"]["lr"], seed) for seed in (1, 2, 3)]
        assert row["results"] == dict(zip("123", losses, strict=True))
        assert row["result"] == pytest.approx(fmean(losses))
        assert row["standard_error"] == pytest.approx(stats.sem(losses))
    assert [row["values"] for row in found["trials"]] == [{"lr": "0.05"}, {"lr": "1e-6"}]
    assert "--seed" not in found["best"]

    calls.clear()
    capsys.readouterr()
    assert cli.main(["tune", *words, "--", *JOB]) == 0
    title, best, *_ = (line.split() for line in capsys.readouterr().out.splitlines())
    assert title[:3] == ["lr", "train_loss", "s.e."]
    assert best[1:3] == [f"{found['trials'][0]['result']:.4f}", f"{found['trials'][0]['standard_error']:.4f}"]
    assert calls == []


def test_a_trial_that_fails_with_one_seed_has_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(arguments: Sequence[str], log: Path | None = None) -> int:
        return 4 if "2" in arguments[arguments.index("--seed") :][:2] else cli.main(arguments)

    monkeypatch.setattr(subprocess_runs, "run_psnode", run)
    words = ["--vary", "lr=0.01", "--steps", "2", "--metric", "train-loss", "--seeds", "2", "--output", tmp_path]
    assert cli.main(["tune", *map(str, words), "--", *JOB]) == 1
    told = capsys.readouterr()
    assert "lr=0.01: diverged, see" in told.err
    assert "lr=0.01,seed=2/output.log" in told.err.replace("\n", "")
