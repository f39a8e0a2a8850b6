"""psnode compared with DDP: the same training on both sides, the same counting, and arithmetic checked by hand."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from psnode.bench.contest import comparison
from psnode.bench.contest.combine import combine, load, tables
from psnode.bench.contest.contender_run import ContenderRun, Point, step_durations
from psnode.bench.contest.contenders import Ddp, Psnode, SharedSettings
from psnode.bench.contest.standings import plot, row, show, with_ratios
from psnode.bench.contest.step_marks import Exchange, HostTraffic, Mark, Metered, MeteredTask, metered, read_marks
from psnode.errors import ConfigurationError
from psnode.jobs.planning.ddp_hooks import Communication
from psnode.task import Task, load_task
from psnode.tasks.classification import Classification
from psnode.tasks.data.sampler import Sampler

PARAMETERS = 431_080  # of LeNet
TINY = SharedSettings(network="LeNet", dataset="digits", workers=2, batch=8, lr=0.02, steps=8, evaluate_every=8)


def measured(ground: SharedSettings, **options: Any) -> dict[str, Any]:
    """Return the result of `comparison.run` on unshaped links; skip the test where hosts cannot be emulated."""
    pytest.importorskip("mpi4py")
    try:
        return comparison.run(ground, rates=["none"], warmup=2, run_seconds=50, **options)
    except ConfigurationError as error:
        pytest.skip(str(error))


def sgd(ground: SharedSettings) -> dict[str, torch.Tensor]:
    """Return the weights after `ground.steps` steps of one process on the joined batches of all workers, in plain PyTorch."""
    task = Classification(ground.network, ground.dataset, seed=ground.seed)
    torch.manual_seed(ground.seed)
    model, data = task.model(), task.train_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=ground.lr, momentum=0.9)
    shares = [Sampler(len(data), rank, ground.workers, ground.batch, 1, ground.seed) for rank in range(ground.workers)]
    for step in range(1, ground.steps + 1):
        images, labels = data.batch(np.concatenate([share.indices(step)[0] for share in shares]), None)
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.long
@pytest.mark.serial
def test_psnode_and_ddp_train_as_one_process_does_and_send_what_theory_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that each of two workers sends 4 bytes per parameter if gradients and weights are float32. This holds in a star,
    and in DDP's ring, where each of P workers sends 2 (P - 1) / P times 4 bytes.
    """
    result = measured(TINY, schemes=["dense"], ddp=["fp32"], keep=tmp_path / "runs")
    assert result["rates"]["none"]["failed"] == {}
    ddp, star = result["rates"]["none"]["rows"]
    for found in (ddp, star):
        assert found["bytes"]["sent"] == pytest.approx(4 * PARAMETERS, rel=0.03)
        assert found["bytes"]["received"] == pytest.approx(4 * PARAMETERS, rel=0.03)
    assert ddp["bytes"]["sent_by_all"] == pytest.approx(2 * 4 * PARAMETERS, rel=0.03)
    assert star["bytes"]["sent_by_all"] == pytest.approx(4 * 4 * PARAMETERS, rel=0.03)
    assert star["booked"] == pytest.approx(1, abs=0.03)
    expected = sgd(TINY)
    paths = sorted((tmp_path / "runs").rglob("*model.safetensors")) + sorted((tmp_path / "runs").rglob("step-*.safetensors"))
    assert len(paths) == 2
    for path in paths:
        weights = load_file(path)
        assert weights.keys() == expected.keys()
        for name, value in weights.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)
    assert ddp["top1"] == star["top1"]

    show(result)
    table = capsys.readouterr().out
    assert all(name in table for name in ("DDP fp32", "psnode dense", f"torch (with DDP and gloo) {torch.__version__}"))
    pytest.importorskip("matplotlib")
    plot(result, tmp_path / "plots" / "comparison.png")
    assert (tmp_path / "plots" / "comparison.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.serial
def test_the_command_measures_the_floor_and_powersgd_and_writes_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out" / "comparison.json"
    try:
        code = comparison.main(
            network="LeNet", dataset="digits", data_dir=None, workers=2, batch_size=8, lr=0.02, seed=1, steps=3, warmup=2,
            evaluate_every=3, schemes=(), ddp=("powersgd:rank=1",), rates=("none",), rounds=1, target=0.0, run_seconds=50.0,
            keep=None, json_file=file, plot_file=None,
        )  # fmt: skip
    except ConfigurationError as error:
        pytest.skip(str(error))
    assert code == 0
    assert "no communication" in capsys.readouterr().out
    floor, peer = json.loads(file.read_text())["rates"]["none"]["rows"]
    assert [point["step"] for point in peer["curves"][0]] == [3, 6]
    assert peer["to_target"][0]["step"] == 3
    assert floor["bytes"]["sent"] < 1000
    # rank-1 factors of LeNet's four matrices, and its four vectors; in small messages, headers may double the bytes
    factors = sum(m + n for m, n in ((20, 25), (50, 500), (500, 800), (10, 500)))
    assert 1 < peer["bytes"]["sent"] / (4 * (factors + 20 + 50 + 500 + 10)) < 2
    assert floor["ratios"] == {"floor": 1.0, "best_ddp": pytest.approx(1 / peer["ratios"]["floor"]), "unshaped_ddp": None}


LSTM = {"task": str(Path(__file__).parents[2] / "examples" / "charlm.py"), "width": "8", "length": "4"}
IMAGES = {"network": "LeNet", "dataset": "synthetic", "seed": "3", "shape": "1,28,28"}


@pytest.mark.parametrize(("options", "kind"), [(IMAGES, Metered), (LSTM, MeteredTask)])
def test_a_metered_task_is_the_task_and_marks_every_backward_pass(
    options: dict[str, str], kind: type[Task], tmp_path: Path
) -> None:
    if kind is Metered:
        plain: Task = Classification("LeNet", "synthetic", seed=3, options={"shape": "1,28,28"})
    else:
        plain = load_task(LSTM["task"], {"width": "8", "length": "4"})
    task = metered({"marks": str(tmp_path), **options})
    assert type(task) is kind and not task.constrains
    torch.manual_seed(0)
    model = task.model()
    batch = task.train_data().batch(np.arange(4), None)
    losses = []
    for _ in range(5):
        loss, _ = task.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
    same = plain.train_data().batch(np.arange(4), None)
    expected, outputs = plain.loss(model, same)
    assert losses == [float(expected.detach())] * 5
    assert task.size(batch) == plain.size(same)
    assert task.metrics(outputs, batch) == plain.metrics(outputs, same) != {}
    [file] = tmp_path.iterdir()
    file.rename(tmp_path / "some-host-2.jsonl")
    [marks] = read_marks(tmp_path, 3)
    assert len(marks) == 3
    assert marks == sorted(marks)


def test_contenders_train_the_task_that_they_share(tmp_path: Path) -> None:
    ground = SharedSettings(network="LSTM", task="charlm.py", options=(("width", "8"),))
    words = Psnode("qsgd").arguments(ground, tmp_path)
    assert "psnode.bench.contest.step_marks:MeteredTask" in words
    assert {"task=charlm.py", "width=8"} < set(words) and "network=LSTM" not in words
    Ddp("fp32").command(ground, tmp_path)
    options = json.loads((tmp_path / "program.json").read_text())["options"]
    assert options == {"marks": str(tmp_path / "marks"), "task": "charlm.py", "width": "8"}
    with pytest.raises(ConfigurationError, match="only gradients of networks"):
        Psnode("qsgd", alone=True).arguments(ground, tmp_path)
    with pytest.raises(ConfigurationError, match=r"accuracy of the task charlm\.py is not measured"):
        SharedSettings(task="charlm.py", evaluate_every=5)


def test_marks_come_by_the_number_of_the_host(tmp_path: Path) -> None:
    for host in (10, 2, 9):
        (tmp_path / f"netlab-77-{host}.jsonl").write_text(json.dumps([host, 0, 0, 0, 0]) + "\n")
    assert [worker[0].seconds for worker in read_marks(tmp_path, 1)] == [2, 9, 10]


def test_traffic_and_durations_are_differences() -> None:
    first, last = Mark(1.0, 1000, 10, 500, 5), Mark(2.5, 11000, 20, 700, 7)
    assert HostTraffic.between(first, last) == HostTraffic(200, 10000, 200 - 2 * 66, 10000 - 10 * 66)
    assert step_durations([[first, last], [first, first._replace(seconds=1.5)]]) == [pytest.approx((1.5 + 0.5) / 2)]


def trial(*milliseconds: float) -> ContenderRun:
    steps = tuple(each / 1e3 for each in milliseconds)
    curve = (Point(1, 1.0, 10, 0.5), Point(2, 2.0, 20, 0.9))
    return ContenderRun(steps, sent=1.0, received=2.0, sent_by_all=3.0, booked=None, goodput=(90.0,), curve=curve)


def test_ratios_are_medians_over_rounds_that_both_finished() -> None:
    floor = row(Ddp("none").label, [trial(10, 10), trial(20, 20), trial(10, 10)], None)
    peer = row(Ddp("fp32").label, [trial(30, 50), trial(40, 40), None], 0.8)
    ours = row(Psnode("dense").label, [trial(20, 20), trial(10, 10), trial(30, 30)], 0.95)
    assert peer["step_ms"]["rounds"] == [pytest.approx(40), pytest.approx(40), None]
    assert peer["step_ms"]["median"] == pytest.approx(40)
    with_ratios({"100mbit": [floor, ours], "none": [floor, peer]})
    assert ours["ratios"] == {"floor": pytest.approx(2.0), "best_ddp": None, "unshaped_ddp": pytest.approx((0.5 + 0.25) / 2)}
    assert ours["exposed_ms"] == pytest.approx(10)  # the median of 10, -10, 20
    assert ours["hidden"] is None
    assert peer["ratios"] == {"floor": pytest.approx((4 + 2) / 2), "best_ddp": 1.0, "unshaped_ddp": 1.0}
    assert [point["step"] for point in peer["to_target"]] == [2, 2]
    assert ours["to_target"] == [None, None, None]


def test_hidden_is_what_the_step_does_not_show_of_the_exchange() -> None:
    rows = [
        row(Ddp("none").label, [trial(10, 10), trial(10, 10), trial(10, 10)], None),
        row(Psnode("dense").label, [trial(15, 15), trial(12, 12), trial(30, 30)], None),
        row(Psnode("dense", alone=True).label, [trial(20, 20), trial(10, 10), trial(20, 20)], None),
        row(Psnode("qsgd").label, [trial(15, 15), None, None], None),
    ]
    with_ratios({"none": rows})
    assert rows[1]["hidden"] == pytest.approx(0.75)  # the median of 1 - 5/20, 1 - 2/10, 1 - 20/20
    assert rows[3]["hidden"] is None  # its own exchange was not measured


def test_an_exchange_has_fixed_gradients_of_the_models_size_and_marks_every_pass(tmp_path: Path) -> None:
    task = Exchange({"marks": str(tmp_path), "network": "LeNet", "dataset": "digits"})
    model = task.model()
    seen = []
    for _ in range(2):
        model.zero_grad()
        loss, outputs = task.loss(model, (torch.zeros(3), torch.zeros(3)))
        loss.backward()  # type: ignore[no-untyped-call]
        assert task.metrics(outputs, (torch.zeros(3), torch.zeros(3))) == {}
        seen.append(torch.cat([torch.as_tensor(weights.grad).reshape(-1).clone() for weights in model.parameters()]))
    assert torch.equal(seen[0], seen[1])
    assert seen[0].numel() == PARAMETERS
    assert seen[0].std() == pytest.approx(1e-3, rel=0.02)
    [file] = tmp_path.iterdir()
    assert len(file.read_text().splitlines()) == 2


def result(steps: int, seed: int, network: str = "LeNet", **trials: list[ContenderRun | None]) -> dict[str, Any]:
    """Return a result as `comparison.run` returns it, from these trials at 100mbit."""
    labels = {"floor": Ddp("none").label, "fp32": Ddp("fp32").label, "dense": Psnode("dense").label}
    found = tables({"100mbit": {labels[name]: rounds for name, rounds in trials.items()}}, {"100mbit": {}}, None)
    ground = {**asdict(TINY), "network": network, "steps": steps, "seed": seed}
    common = {"cpu": "c", "cores": 2, "date": "2026-11-21T00:00:00", "versions": {"psnode": "1"}, "target": None, "warmup": 2}
    return dict(json.loads(json.dumps({**common, "ground": ground, "rounds": 1, "rates": found})))


def test_results_of_pieces_are_those_of_one_run(tmp_path: Path) -> None:
    floor, peer, ours = [trial(10, 12), trial(20, 21)], [trial(30, 50), None], [trial(20, 21), trial(10, 11)]
    whole = result(9, 1, floor=floor, fp32=peer, dense=ours)
    pieces = [
        result(9, 1, dense=ours[:1], floor=floor[:1], fp32=peer[:1]),
        result(9, 1, network="FC", dense=ours[:1]),
        result(5, 2, floor=floor[1:], dense=ours[1:], fp32=peer[1:]),
        result(9, 2, dense=ours[:1]),
    ]
    files = [tmp_path / f"{number}.json" for number in range(len(pieces))]
    for file, piece in zip(files, pieces, strict=True):
        file.write_text(json.dumps(piece))
    together, other = combine(load(files[:3]))
    assert [each["name"] for each in together["rates"]["100mbit"]["rows"]] == ["no communication", "DDP fp32", "psnode dense"]
    assert json.loads(json.dumps(together["rates"])) == whole["rates"]
    assert other["ground"]["network"] == "FC"
    [more, _] = combine(load(files))
    rounds = [each["step_ms"]["rounds"] for each in more["rates"]["100mbit"]["rows"]]
    assert [[median is not None for median in each] for each in rounds] == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
    files[0].write_text('{"ground": {}}')
    assert load(files[1:2]) == pieces[1:2]
    with pytest.raises(ConfigurationError, match=r"0\.json holds no result"):
        load([tmp_path / "none" / "0.json"])


def test_tables_replace_only_what_was_measured_on_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{comparison.BEGIN}old\n{comparison.END}after\n")
    json_file = tmp_path / "piece.json"
    json_file.write_text(json.dumps(result(9, 1, floor=[trial(10, 10)], dense=[trial(25, 25)])))
    options: dict[str, Any] = {
        "network": "", "dataset": "", "data_dir": None, "workers": 0, "batch_size": 0, "lr": 0, "seed": 0, "steps": 0,
        "evaluate_every": 0, "warmup": 0, "json_file": None, "plot_file": None,
    }  # fmt: skip
    assert comparison.main(**options, earlier=[json_file], markdown_file=page) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| psnode dense | 1 | 25.0 | 25.0-25.0 | 15.0 | 2.50 |" in text
    assert comparison.main(**options, earlier=[json_file], markdown_file=tmp_path / "new.md") == 0
    assert (tmp_path / "new.md").read_text() == text.partition(comparison.BEGIN)[2].partition(comparison.END)[0]


def test_settings_that_are_true_or_false_become_flags_of_train(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    assert Psnode("dense --overlap false").command(TINY, tmp_path)[-3:] == ["--scheme", "dense", "--no-overlap"]
    assert Psnode("dense --overlap=true").command(TINY, tmp_path)[-1] == "--overlap"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("fp32", {"bucket": 25}),
        ("fp16:bucket=1", {"bucket": 1}),
        ("powersgd:rank=4", {"rank": 4, "start": 2, "bucket": 1000}),
        ("none", {}),
    ],
)
def test_communication_of_ddp(spec: str, expected: dict[str, int]) -> None:
    assert Communication.parse(spec).parameters == expected


def test_psnode_s_own_hook_in_ddp_takes_a_codec() -> None:
    found = Communication.parse("psnode:topk:ratio=0.005+fp16")
    assert (found.codec, str(found)) == ("topk:ratio=0.005+fp16", "psnode:topk:ratio=0.005+fp16")
    assert Ddp(str(found)).label.kind == "hook"
    with pytest.raises(ConfigurationError, match="nonsense"):
        Communication.parse("psnode:nonsense")


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("powersg", "did you mean powersgd"),
        ("fp32:rank=2", "takes bucket=1 or more, not 'rank=2'"),
        ("powersgd:rank=0", "not 'rank=0'"),
        ("powersgd:rank", "not 'rank'"),
        ("none:bucket=1", "takes no parameters"),
    ],
)
def test_a_bad_communication_is_refused(spec: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        Ddp(spec)


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        ("densee", "did you mean dense"),
        ("dense --codec qsgd:level=1", "levels"),
        ("dense --downlnk bf16", "unknown flag --downlnk; did you mean --downlink"),
        ("dense --batch-size 3", "the same for all that is compared"),
        ("dense --max-steps=3", "the same for all that is compared"),
        ("dense --downlink", "--downlink needs a value"),
        ("dense --topology star:down=tree", "passed-on bytes twice"),
    ],
)
def test_bad_flags_of_a_scheme_are_refused_before_anything_runs(flags: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        Psnode(flags)


@pytest.mark.parametrize("topology", ["star", "mesh", "gather"])
def test_schemes_may_be_compared_under_several_topologies(topology: str) -> None:
    assert Psnode(f"dense --topology {topology}").settings == {"scheme": "dense", "topology": topology}


@pytest.mark.parametrize(
    ("changed", "options", "hint"),
    [
        ({"network": "LeNett"}, {}, "LeNet"),
        ({"steps": 8}, {"warmup": 6}, "1 measured steps have no spread"),
        ({"evaluate_every": 0}, {"target": 0.5}, "--target needs accuracies"),
    ],
)
def test_what_cannot_be_measured_is_refused(changed: dict[str, Any], options: dict[str, Any], hint: str) -> None:
    from dataclasses import replace

    with pytest.raises(ConfigurationError, match=hint):
        comparison.run(replace(TINY, **changed), **options)
