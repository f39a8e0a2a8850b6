"""The convergence table: real jobs, and figures that agree with their files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from psnode.bench.convergence import convergence_run
from psnode.bench.convergence.equal_steps import run
from psnode.bench.convergence.result_tables import markdown
from psnode.errors import ConfigurationError, DivergedError, PsnodeError

COMMON = "--max-steps 6 --batch-size 8 --threads 1 --no-tensorboard"


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.usefixtures("forks")
def test_a_row_is_what_the_run_left_behind(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    result = run(["qsgd --lr 0.05"], COMMON, workers=2, seeds=[3], output=tmp_path, local=False)
    [row] = result["rows"]
    [train_dir] = tmp_path.iterdir()
    summary = json.loads((train_dir / "summary.json").read_bytes())
    [evaluation] = [json.loads(line) for line in (train_dir / "evaluations.jsonl").read_text().splitlines()]
    config = json.loads((train_dir / "config.json").read_bytes())["config"]
    assert (config["scheme"], config["lr"], config["seed"]) == ("qsgd", 0.05, 3)
    assert row["top1"] == evaluation["top1"]
    assert row["uplink_bytes"] == summary["uplink_bytes"] / 6 / 2
    assert row["ratio"] == summary["compression_ratio"]
    assert "| qsgd --lr 0.05 | 0.05 |" in markdown(result)


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.usefixtures("forks")
def test_runs_of_a_task_are_evaluated(tmp_path: Path) -> None:
    """Check that the benchmark evaluates runs of a --task file. It may execute the file named in their records, since the
    user named the same file.
    """
    common = "--task examples/regression.py --max-steps 2 --threads 1 --no-tensorboard"
    result = run(["dense"], common, workers=1, seeds=[1], output=tmp_path, local=True)
    assert result["rows"][0]["loss"] > 0 and result["rows"][0]["top1"] is None
    assert "| dense | 0.01 |  |" in markdown(result)


@pytest.mark.long
@pytest.mark.usefixtures("forks")
def test_a_run_that_fails_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    with pytest.raises(PsnodeError, match="exit code 2"):
        run(["dense --init-from absent.safetensors"], COMMON, workers=1, seeds=[1], output=tmp_path, local=False)


@pytest.mark.usefixtures("in_this_process")
def test_a_run_that_diverges_is_told_from_one_that_fails(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"workers": 1, "seeds": [1], "output": tmp_path, "local": True}
    with pytest.raises(DivergedError, match="exit code 4"):
        run(["dense --lr 1e30"], COMMON, **arguments)
    with pytest.raises(PsnodeError, match="exit code 2") as failed:
        run(["dense --init-from absent.safetensors"], COMMON, **arguments)
    assert not isinstance(failed.value, DivergedError)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("no-such-scheme", "--run no-such-scheme: --scheme must be one of"),
        ("mine=dense --lr x", "--run dense --lr x: .*'x'"),
        ("dense --no-such-flag 1", "--run dense --no-such-flag 1: .*--no-such-flag"),
        ("--codec examples/codec.py:Absent", "--run --codec examples/codec.py:Absent: .*has no class 'Absent'"),
        ("--codec absent.py:Codec:k=3", "--run --codec absent.py:Codec:k=3: .*absent.py does not exist"),
        ("ddp:fp16 --feedback ef", "--run ddp:fp16: DDP is not trained with --feedback"),
    ],
)
def test_every_run_is_checked_before_the_first_one_trains(
    bad: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(convergence_run, "run_psnode", calls.append)
    with pytest.raises(ConfigurationError, match=told) as refused:
        run(["dense", bad], COMMON, workers=1, seeds=[1], output=tmp_path, local=True)
    assert (calls, "\n" in str(refused.value), [*tmp_path.iterdir()]) == ([], False, [])


@pytest.mark.usefixtures("in_this_process")
def test_runs_may_share_a_file_of_settings(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("momentum = 0.5\n")
    output = tmp_path / "runs"
    run(["dense"], f"{COMMON} --config {tmp_path / 'settings.toml'}", workers=1, seeds=[1], output=output, local=True)
    [train_dir] = output.iterdir()
    assert json.loads((train_dir / "config.json").read_bytes())["config"]["momentum"] == 0.5
    with pytest.raises(ConfigurationError, match=r"--run dense: .*absent\.toml"):
        run(["dense"], f"{COMMON} --config absent.toml", workers=1, seeds=[2], output=output, local=True)
    with pytest.raises(ConfigurationError, match="leave out --config"):
        run(["ddp:fp32"], f"{COMMON} --config {tmp_path / 'settings.toml'}", workers=1, seeds=[1], output=output, local=True)


@pytest.mark.usefixtures("in_this_process")
def test_a_codec_of_ones_own_is_trained_under_its_name(tmp_path: Path) -> None:
    mine = "--codec examples/codec.py:Logarithmic:octaves=8 --feedback ef"
    [row] = run([f"my codec={mine}"], COMMON, workers=1, seeds=[1], output=tmp_path, local=True)["rows"]
    assert (row["name"], row["run"]) == ("my codec", mine)
    [train_dir] = tmp_path.iterdir()
    scheme = json.loads((train_dir / "config.json").read_bytes())["scheme"]
    assert (train_dir.name, scheme["codec"], scheme["feedback"]) == ("my_codec-1", "logarithmic:octaves=8", "ef")


@pytest.mark.usefixtures("in_this_process")
def test_a_run_is_found_again_under_an_earlier_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {"workers": 1, "seeds": [1], "output": tmp_path, "local": True, "lrs": ["0.05"]}
    [first] = run(["dense"], COMMON, **arguments)["rows"]
    assert [path.name for path in tmp_path.iterdir()] == ["dense---lr-0.05-1"]
    monkeypatch.setattr(convergence_run, "run_psnode", None)  # nothing is trained anew
    [named] = run(["the baseline=dense"], COMMON, **arguments)["rows"]
    assert named == {**first, "name": "the baseline"}
    assert [path.name for path in tmp_path.iterdir()] == ["dense---lr-0.05-1"]
    with pytest.raises(ConfigurationError, match="choose another name"):
        run(["a b=qsgd", "a_b=natural"], COMMON, **arguments)


@pytest.mark.usefixtures("in_this_process")
def test_runs_that_are_done_are_read_and_the_best_rate_of_each_is_reported(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"workers": 2, "seeds": [1, 2], "output": tmp_path, "local": True, "lrs": ["0.05", "1e-06"]}
    first = run(["dense"], COMMON, jobs=2, **arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"dense---lr-{lr}-{n}" for lr in ("0.05", "1e-06") for n in (1, 2)
    ]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")}
    again = run(["dense"], COMMON, **arguments)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")} == written
    [row], [same] = first["rows"], again["rows"]
    assert row == same
    assert row["lr"] == 0.05
    one, other = row["all_top1"]
    assert row["tried"]["0.05"] == row["top1"] == pytest.approx((one + other) / 2)
    assert row["standard_error"] == pytest.approx(abs(one - other) / 2)  # (difference / sqrt 2) / sqrt 2


@pytest.mark.usefixtures("in_this_process")
def test_rates_screened_on_the_first_seed_leave_one_run_for_every_other_seed(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"workers": 1, "seeds": [2, 1], "output": tmp_path, "local": True, "lrs": ["1e-06", "0.05"]}
    [row] = run(["dense"], COMMON, screen=True, **arguments)["rows"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dense---lr-0.05-1", "dense---lr-0.05-2", "dense---lr-1e-06-2"]
    assert (row["lr"], len(row["all_top1"])) == (0.05, 2)
    assert row["tried"]["0.05"] == row["all_top1"][0] > row["tried"]["1e-06"]


@pytest.mark.usefixtures("in_this_process")
def test_a_curve_has_the_accuracies_that_shorter_runs_end_with_and_the_bytes_of_the_records(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"workers": 2, "seeds": [1], "local": True}
    [row] = run(["qsgd"], COMMON, output=tmp_path / "long", evaluate_every=4, rate="1mbit", **arguments)["rows"]
    [curve] = row["curves"]
    assert [point["step"] for point in curve] == [4, 6]
    [short] = run(["qsgd"], COMMON.replace("6", "4", 1), output=tmp_path / "short", **arguments)["rows"]
    assert (curve[0]["top1"], curve[0]["loss"]) == (short["top1"], short["loss"])
    [train_dir] = (tmp_path / "long").iterdir()
    records = [json.loads(line) for line in (train_dir / "metrics.jsonl").read_text().splitlines()]
    sent = sum(record["uplink_bytes"] + record["downlink_bytes"] for record in records[:4])
    assert curve[0]["nbytes"] == sent / 2
    assert curve[0]["at_rate"] == pytest.approx(curve[0]["computing"] + 8 * sent / 1e6)
    assert [path.name for path in (train_dir / "checkpoints").glob("step-*")] == ["step-00000006"]

    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "long").glob("*/*")}
    [again] = run(["qsgd"], COMMON, output=tmp_path / "long", evaluate_every=4, rate="1mbit", **arguments)["rows"]
    assert again == row
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "long").glob("*/*")} == written


@pytest.mark.usefixtures("in_this_process")
def test_seconds_at_a_rate_are_those_of_the_busiest_link_of_the_topology(tmp_path: Path) -> None:
    """Check the bytes on the busiest link of four workers, where a gradient has u bytes and the weights have v bytes.

    In a star, rank 0 passes 4 u + 4 v, or 4 u + 2 v if the weights go down a tree. In a gather, each worker passes 3 u in
    each direction. With two servers, each of which holds about half of the weights, a worker passes u up and v down.
    """
    others = ("star:down=tree", "gather", "mesh", "sharded:servers=2")
    contenders = ["dense", *(f"dense --topology {each}" for each in others)]
    common = COMMON.replace("6", "2", 1)
    rows = run(contenders, common, workers=4, seeds=[1], output=tmp_path, local=True, rate="1mbit")["rows"]
    central, passed, copied, dealt, shared = (row["curves"][0][0] for row in rows)
    up, down = (8 * rows[0][name] for name in ("uplink_bytes", "downlink_bytes"))  # 2 steps of 4 workers
    assert (central["link_bytes"], central["nbytes"]) == (up + down, (up + down) / 4)
    assert (passed["link_bytes"], passed["nbytes"]) == (up + down / 2, (up + down + down / 2) / 4)
    assert (copied["link_bytes"], copied["nbytes"]) == (3 * up / 4, 2 * 3 * up / 4)
    assert dealt["nbytes"] == pytest.approx(2 * 3 / 4 * (up + down) / 4, rel=0.01)  # more headers, as groups are smaller
    assert dealt["nbytes"] / 2 <= dealt["link_bytes"] < 1.5 * dealt["nbytes"] / 2
    assert shared["nbytes"] == pytest.approx((up + down) / 4, rel=0.01)
    assert (up + down) / 2 < shared["link_bytes"] < 0.8 * (up + down)
    assert dealt["at_rate"] == pytest.approx(dealt["computing"] + 8 * dealt["link_bytes"] / 1e6)


@pytest.mark.usefixtures("in_this_process")
def test_a_rate_at_which_training_diverges_is_not_the_best_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {"workers": 1, "seeds": [1], "output": tmp_path, "local": True, "lrs": ["0.01", "0.05", "1e30"]}
    [row] = run(["dense"], COMMON, **arguments)["rows"]
    assert row["tried"]["1e+30"] is None
    assert row["top1"] == max(row["tried"]["0.01"], row["tried"]["0.05"])
    calls: list[Any] = []
    monkeypatch.setattr(convergence_run, "run_psnode", calls.append)
    assert run(["dense"], COMMON, **arguments)["rows"] == [row]
    assert calls == []


@pytest.mark.usefixtures("in_this_process")
def test_a_run_that_was_stopped_goes_on_and_one_with_other_settings_is_refused(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"workers": 2, "seeds": [1], "output": tmp_path, "local": True}
    whole = run(["qsgd"], COMMON, **arguments)
    [train_dir] = tmp_path.iterdir()
    (train_dir / "summary.json").unlink()  # as if killed before its end, with nothing saved
    shutil.rmtree(train_dir / "checkpoints")
    (train_dir / "evaluations.jsonl").unlink()
    assert run(["qsgd"], COMMON, **arguments)["rows"][0]["all_top1"] == whole["rows"][0]["all_top1"]
    with pytest.raises(PsnodeError, match="holds a run with other settings"):
        run(["qsgd"], COMMON.replace("8", "4"), **arguments)
    record = json.loads((train_dir / "config.json").read_bytes())
    record["scheme"]["downlink"] = "bf16"  # as if the table had stated this scheme then
    (train_dir / "config.json").write_text(json.dumps(record))
    with pytest.raises(PsnodeError, match="when its scheme meant something else"):
        run(["qsgd"], COMMON, **arguments)


@pytest.mark.long
@pytest.mark.usefixtures("in_this_process")
def test_schemes_keep_up_with_dense(tmp_path: Path) -> None:
    """Check that a run's accuracy on 360 test images is at most 4 points below that of dense; a run's standard deviation is
    about 1 point.
    """
    common = "--max-steps 160 --batch-size 16 --lr 0.02 --lr-schedule cosine --threads 1 --no-tensorboard"
    result = run(["dense", "qsgd", "efsignsgd --lr 0.2"], common, workers=2, seeds=[1], output=tmp_path, local=True)
    dense, *coded = result["rows"]
    assert dense["top1"] > 0.9
    for row in coded:
        assert row["top1"] > dense["top1"] - 0.04, row["run"]
        assert row["uplink_bytes"] < dense["uplink_bytes"] / 5
