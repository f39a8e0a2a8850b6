"""Plan files: runs that follow them, resume without them, and refuse those that do not fit."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psnode.cli import main
from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError
from psnode.exchange.flat_model import describe
from psnode.jobs.dry_run import dry_run
from psnode.jobs.job import run
from psnode.plans.groups import IDENTITY, Plan, Tensor
from psnode.plans.plan_file import PlanFile, stated_settings
from psnode.plans.prediction import PredictedSpan, Prediction
from psnode.plans.rule import plan_of
from psnode.records.metrics import METRICS, read_records
from psnode.tasks.loading import make_task

MODEL = Config(
    network="FC", dataset="synthetic", synthetic_shape=(1, 8, 8), batch_size=4, threads=1, max_steps=12, local=2,
    tensorboard=False, eval_freq=5, quiet=True, scheme="qsgd",
)  # fmt: skip
PREDICTION = Prediction(0.5, 2, "a guess", "link")


def tensors() -> list[Tensor]:
    return describe(make_task(MODEL).model())


def by_rule(config: Config = MODEL) -> Plan:
    """Return the rule's plan for tensors in the model's order; a job has them in the order in which gradients finish."""
    return plan_of(tensors(), resolve(config), config)


def mixed() -> Plan:
    """Return a plan with a group for each tensor, the large ones coded by two codecs in turn."""
    groups, start = [], 0
    for number, tensor in enumerate(tensors()):
        codec = ("qsgd:levels=15", "topk:ratio=0.1")[number // 2 % 2] if len(tensor.shape) > 1 else IDENTITY
        groups.append([[codec, start, [tensor.size]]])
        start += tensor.size
    return Plan.from_dict({"tensors": [[tensor.name, list(tensor.shape)] for tensor in tensors()], "groups": groups})


def saved(file: Path, plan: Plan, settings: dict[str, Any] | None = None, prediction: Prediction | None = PREDICTION) -> str:
    PlanFile(plan, {"scheme": "qsgd"} if settings is None else settings, prediction, ("why",)).save(file)
    return str(file)


def of(path: Path, name: str = "summary.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / name).read_bytes())
    return found


def test_a_file_returns_all_that_was_saved(tmp_path: Path) -> None:
    saved(tmp_path / "new" / "plan.json", mixed())
    found = PlanFile.load(tmp_path / "new" / "plan.json")
    assert (found.plan, found.settings, found.prediction, found.told) == (mixed(), {"scheme": "qsgd"}, PREDICTION, ("why",))


def test_the_spans_of_a_predicted_step_are_kept_in_the_file_and_the_run_and_not_in_its_summary(tmp_path: Path) -> None:
    spans = (PredictedSpan("passes", -1, 0.0, 0.25), PredictedSpan("in", 0, 0.25, 0.5))
    file = saved(tmp_path / "plan.json", by_rule(), prediction=replace(PREDICTION, spans=spans))
    found = PlanFile.load(Path(file)).prediction
    assert found is not None
    assert found.spans == spans
    assert run(replace(MODEL, train_dir=tmp_path / "run", plan=file)) == 0
    assert of(tmp_path / "run", "config.json")["prediction"]["spans"] == [["passes", -1, 0.0, 0.25], ["in", 0, 0.25, 0.5]]
    assert "spans" not in of(tmp_path / "run")["prediction"]


def test_settings_of_a_scheme_are_those_that_are_not_the_default() -> None:
    assert stated_settings(Config()) == {"scheme": "polar-2bit"}
    assert stated_settings(replace(MODEL, quantization_level=3)) == {"scheme": "qsgd", "quantization_level": 3}


def test_the_plan_of_a_run_is_that_of_its_file(tmp_path: Path) -> None:
    """Check that the same plan, from a file or from the rule, makes the same weights, and that the file's order of tensors
    is kept.
    """
    assert run(replace(MODEL, train_dir=tmp_path / "rule")) == 0
    made = Plan.from_dict(of(tmp_path / "rule", "config.json")["plan"])
    file = saved(tmp_path / "plan.json", made)
    assert run(replace(MODEL, train_dir=tmp_path / "file", plan=file, scheme="auto")) == 0
    assert of(tmp_path / "file")["model_hash"] == of(tmp_path / "rule")["model_hash"]
    assert of(tmp_path / "file", "config.json")["plan"] == made.to_dict()
    assert of(tmp_path / "file", "config.json")["config"]["scheme"] == "qsgd"


def test_codecs_may_differ_and_the_prediction_stands_beside_the_steps(tmp_path: Path) -> None:
    file = saved(tmp_path / "plan.json", mixed())
    config = replace(MODEL, train_dir=tmp_path / "run", plan=file)
    assert run(config) == 0
    summary, record = of(tmp_path / "run"), of(tmp_path / "run", "config.json")
    assert record["plan"] == mixed().to_dict()
    steps = [each["seconds"]["step"] for each in read_records(tmp_path / "run" / METRICS)]
    expected = statistics.median(steps[2:])
    assert summary["prediction"] == {**PREDICTION.to_dict(), "measured": expected, "off": pytest.approx(expected / 0.5 - 1)}
    text = dry_run(replace(MODEL, plan=file), 2)
    assert f"{len(mixed().segments)} segments, {len(mixed().groups)} groups" in text


def test_a_resumed_run_needs_its_file_no_more(tmp_path: Path) -> None:
    file = saved(tmp_path / "plan.json", mixed())
    unbroken, broken = (replace(MODEL, train_dir=tmp_path / name, plan=file) for name in ("unbroken", "broken"))
    assert run(unbroken) == 0
    assert run(replace(broken, stop_after=5)) == 0
    Path(file).unlink()
    assert run(replace(broken, resume=True)) == 0
    assert of(tmp_path / "broken")["model_hash"] == of(tmp_path / "unbroken")["model_hash"]
    assert of(tmp_path / "broken")["prediction"]["source"] == "a guess"


def test_a_resumed_run_may_take_another_plan(tmp_path: Path) -> None:
    first = saved(tmp_path / "first.json", by_rule())
    config = replace(MODEL, train_dir=tmp_path / "run", plan=first)
    assert run(replace(config, stop_after=5)) == 0
    second = saved(tmp_path / "second.json", mixed(), prediction=None)
    assert run(replace(config, plan=second, resume=True)) == 0
    assert of(tmp_path / "run", "config.json")["plan"] == mixed().to_dict()
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert "replanned" in [event["event"] for event in events]
    assert of(tmp_path / "run")["prediction"] is None


def test_a_prediction_for_other_workers_is_left_out(tmp_path: Path) -> None:
    file = saved(tmp_path / "plan.json", by_rule(), prediction=replace(PREDICTION, workers=3))
    assert run(replace(MODEL, train_dir=tmp_path / "run", plan=file)) == 0
    assert of(tmp_path / "run")["prediction"] is None
    [event] = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert "predicts steps of 3 workers, not of 2" in event["reason"]


def test_a_prediction_of_a_run_whose_weights_are_all_on_rank_0_is_left_out_of_others(tmp_path: Path) -> None:
    file = saved(tmp_path / "plan.json", by_rule(), prediction=replace(PREDICTION, workers=2))
    assert run(replace(MODEL, train_dir=tmp_path / "run", plan=file, topology="mesh")) == 0
    assert of(tmp_path / "run")["prediction"] is None
    [event] = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert "predicts steps of 2 workers, not of 2 under --topology mesh" in event["reason"]


def test_a_plan_for_a_topology_is_followed_under_it_and_its_prediction_stands_beside_the_steps(tmp_path: Path) -> None:
    """Check that the weights are those of a run with plan and topology on the command line. A resumed run needs neither the
    file nor the flag.
    """
    plan = by_rule(replace(MODEL, group_by="layer"))
    file, plain = tmp_path / "plan.json", saved(tmp_path / "plain.json", plan, prediction=None)
    PlanFile(plan, {"scheme": "qsgd"}, PREDICTION, (), "mesh").save(file)
    assert PlanFile.load(file).topology == "mesh"
    assert run(replace(MODEL, train_dir=tmp_path / "both", plan=plain, topology="mesh")) == 0
    config = replace(MODEL, train_dir=tmp_path / "run", plan=str(file))
    assert run(replace(config, stop_after=5)) == 0
    file.unlink()
    assert run(replace(config, resume=True)) == 0
    record, summary = of(tmp_path / "run", "config.json"), of(tmp_path / "run")
    assert record["config"]["topology"] == "mesh"
    assert summary["model_hash"] == of(tmp_path / "both")["model_hash"]
    assert summary["link_bytes"]["ranks"]["0"]["weights_out"] == 0
    assert summary["prediction"]["source"] == "a guess"


def test_a_plan_for_the_usual_topology_can_be_read_by_earlier_versions(tmp_path: Path) -> None:
    saved(tmp_path / "plan.json", by_rule())
    found = of(tmp_path, "plan.json")
    assert found["format"] == 1
    assert "topology" not in found


@pytest.mark.parametrize(
    ("topology", "given", "problem"),
    [
        ("mesh", "gather", "has --topology mesh, not gather: leave one of the two out"),
        ("sharded:servers=2", "star", "has --topology sharded:servers=2: name it as well, so that its servers are started"),
        ("net", "star", "holds no plan .*--topology"),
    ],
)
def test_a_topology_that_cannot_be_followed_is_refused(tmp_path: Path, topology: str, given: str, problem: str) -> None:
    file = tmp_path / "plan.json"
    PlanFile(by_rule(), {"scheme": "qsgd"}, None, (), topology).save(file)
    with pytest.raises(ConfigurationError, match=problem):
        run(replace(MODEL, train_dir=tmp_path / "run", plan=str(file), topology=given))
    assert not (tmp_path / "run" / METRICS).exists()


def test_a_plan_whose_only_server_is_rank_0_starts_no_others_and_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    PlanFile(by_rule(), {"scheme": "qsgd"}, None, (), "sharded:servers=1").save(file)
    assert PlanFile.load(file).applied(MODEL).topology == "sharded:servers=1"


def test_servers_of_a_plan_are_started_if_they_are_named(tmp_path: Path) -> None:
    file, topology = tmp_path / "plan.json", "sharded:servers=2"
    PlanFile(by_rule(replace(MODEL, group_by="layer")), {"scheme": "qsgd"}, PREDICTION, (), topology).save(file)
    assert run(replace(MODEL, train_dir=tmp_path / "run", plan=str(file), topology=topology)) == 0
    assert of(tmp_path / "run")["prediction"]["source"] == "a guess"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"scheme": "topk"}, "has --scheme qsgd, not topk"),
        ({"codec": "bf16"}, "has --codec None, not bf16"),
        ({"group_bytes": 5_000_000}, "leave --group-bytes out"),
        ({"group_by": "layer"}, "leave --group-by out"),
        ({"network": "LeNet", "synthetic_shape": (1, 28, 28)}, "is of another model: "),
        ({"optimizer": "adafactor"}, "cuts a tensor, and --optimizer adafactor needs whole ones"),
    ],
)
def test_settings_that_contradict_the_file_are_refused(tmp_path: Path, changed: dict[str, Any], problem: str) -> None:
    cut = by_rule().to_dict()
    [[codec, start, shape], *rest] = cut["groups"][0]
    cut["groups"][0] = [[codec, start, [100]]]
    cut["groups"].insert(1, [[codec, start + 100, [shape[0] - 100]], *rest])
    file = saved(tmp_path / "plan.json", Plan.from_dict(cut))
    with pytest.raises(ConfigurationError, match=problem):
        run(replace(MODEL, train_dir=tmp_path / "run", plan=file, **changed))
    assert not (tmp_path / "run" / METRICS).exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda found: found.update(format=9), "its format is 9"),
        (lambda found: found.pop("plan"), "'plan' is missing"),
        (lambda found: found["settings"].update(lr=3), "lr is no setting of a scheme"),
        (lambda found: found["settings"].update(scheme=5), "--scheme must be"),
        (lambda found: found["prediction"].update(step=-1), "cannot be predicted"),
        (lambda found: found["prediction"].update(spans=[["passes", -1, 0.5, 0.25]]), "the spans of its step"),
        (lambda found: found["prediction"].update(spans=[["rest", 0, 0, 1]]), "the spans of its step"),
        (lambda found: found["prediction"].update(spans=[["passes", 0, 0, 1e999]]), "the spans of its step"),
        (lambda found: found["prediction"].update(spans=[["passes", 0, 0, 1]] * 2001), "the spans of its step"),
        (lambda found: found["prediction"].update(spans=[["passes"]]), "not enough values"),
        (lambda found: found["prediction"].update(spans=7), "a prediction has"),
        (lambda found: found["plan"]["groups"].pop(), "groups cover"),
        (lambda found: found["prediction"].update(workers=1e999), "infinity"),
        (lambda found: found["plan"]["tensors"].append(found["plan"]["tensors"][0]), "groups cover|two places"),
        (lambda found: found["plan"]["groups"][0][0].__setitem__(0, "zip:level=1"), "zip"),
    ],
)
def test_files_without_a_plan_are_refused(tmp_path: Path, change: Any, problem: str) -> None:
    file = Path(saved(tmp_path / "plan.json", mixed()))
    found = json.loads(file.read_bytes())
    change(found)
    file.write_text(json.dumps(found))
    with pytest.raises(ConfigurationError, match=problem):
        run(replace(MODEL, train_dir=tmp_path / "run", plan=str(file)))
    assert not (tmp_path / "run" / METRICS).exists()


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"format": 1}', b"[" * 9000])
def test_no_bytes_end_in_another_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"plan\.json holds no plan"):
        PlanFile.load(tmp_path / "plan.json")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        PlanFile.load(tmp_path / "absent.json")


def test_code_in_a_file_is_executed_only_if_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "codec.py").write_text("raise AssertionError('executed')\n")
    spec = f"{tmp_path / 'codec.py'}:Mine"
    file = saved(tmp_path / "plan.json", by_rule(), {"codec": spec})
    with pytest.raises(ConfigurationError, match="name it with --codec as well"):
        run(replace(MODEL, scheme="auto", train_dir=tmp_path / "run", plan=file))
    inside = mixed().to_dict()
    inside["groups"][0][0][0] = spec
    file = saved(tmp_path / "plan.json", Plan.from_dict(inside))
    with pytest.raises(ConfigurationError):
        run(replace(MODEL, train_dir=tmp_path / "run", plan=file))


def test_a_run_in_the_default_directory_is_resumed_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a run with a plan is resumed in its default directory, which is named after the scheme on the command line,
    although the record holds the plan's scheme.
    """
    monkeypatch.chdir(tmp_path)
    file = saved(tmp_path / "plan.json", mixed())
    flags = ["--network", "FC", "--dataset", "synthetic", "--synthetic-shape", "1,8,8", "--batch-size", "4", "--no-tensorboard"]
    train = ["train", "--local", "2", "--threads", "1", "--max-steps", "12", "--quiet", *flags]
    assert main([*train, "--plan", file, "--stop-after", "5"]) == 0
    [directory] = (tmp_path / "runs").iterdir()
    for more in ([], ["--plan", file]):
        assert main([*train, *more, "--stop-after", str(8 + len(more)), "--resume"]) == 0
    assert list((tmp_path / "runs").iterdir()) == [directory]
    assert of(directory)["steps"] == 10
    assert of(directory, "config.json")["plan"] == mixed().to_dict()


def test_a_run_by_the_rule_goes_on_by_a_file_and_keeps_its_scheme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = saved(tmp_path / "plan.json", mixed(), prediction=None)
    flags = ["--network", "FC", "--dataset", "synthetic", "--synthetic-shape", "1,8,8", "--batch-size", "4", "--no-tensorboard"]
    train = ["train", "--local", "2", "--threads", "1", "--max-steps", "12", "--train-dir", str(tmp_path / "run"), *flags]
    assert main([*train, "--scheme", "qsgd", "--stop-after", "4"]) == 0
    assert main([*train, "--resume", "--plan", file, "--stop-after", "8"]) == 0
    assert of(tmp_path / "run", "config.json")["plan"] == mixed().to_dict()
    assert main([*train, "--resume", "--plan", "auto"]) == 0
    assert "the scheme stays: a resumed run keeps it" in capsys.readouterr().err
    assert of(tmp_path / "run", "config.json")["config"]["scheme"] == "qsgd"
    assert main([*train, "--scheme", "qsgd", "--plan", file, "--train-dir", str(tmp_path / "other")]) == 2
    assert "leave --scheme out" in capsys.readouterr().err
