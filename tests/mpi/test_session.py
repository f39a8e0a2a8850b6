"""psnode.session in real MPI jobs: a plain PyTorch loop, with the master inside the same program."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.nn import functional

import psnode
from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.records import checkpoint
from psnode.records.weights import weights_of
from psnode.task import Batch, Task
from tests.mpi.session_program import Points, digest, network

pytestmark = pytest.mark.serial

PROGRAM = Path(__file__).with_name("session_program.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"
DENSE = {"scheme": "dense", "lr": 0.1, "momentum": 0.9, "eval_freq": 4, "log_interval": 1}
CODED = {**DENSE, "scheme": "topk:ratio=0.05", "downlink": "topk:ratio=0.1", "lr": 0.02, "min_compress_bytes": 0}


def ranks(folder: Path, size: int = 3) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank-{rank}.json").read_bytes()) for rank in range(size)]


def train(mpirun: Any, folder: Path, settings: dict[str, Any], size: int = 3, **plan: Any) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    job = mpirun(size, [PROGRAM, folder, json.dumps({"settings": settings, **plan})])
    assert job.code == 0, job
    return ranks(folder, size)


def saved(folder: Path) -> dict[str, torch.Tensor]:
    newest = checkpoint.latest(folder)
    assert newest is not None
    return checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL)


class SameTask(Task):
    """The program's model, data and loss for `psnode train`."""

    def model(self) -> torch.nn.Module:
        return network()

    def train_data(self) -> Any:
        return Numbered()

    def eval_data(self) -> Any:
        return Numbered()

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        output = model(batch[0])
        return functional.cross_entropy(output, batch[1]), output

    def size(self, batch: Batch) -> int:
        return len(batch[0])


class Numbered(Points):
    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> Batch:
        return self.x[indices], self.y[indices]


def test_dense_steps_are_those_of_plain_sgd_on_the_joined_batch_and_those_of_psnode_train(mpirun: Any, tmp_path: Path) -> None:
    steps = 10
    found = train(mpirun, tmp_path / "session", {**DENSE, "max_steps": steps}, workers=1)
    assert [each["version"] for each in found] == [steps] * 3
    assert all(each["own_memory"] for each in found)
    assert [len(each["drawn"]) for each in found] == [0, steps, steps]
    for epoch in range(steps // 4):  # 64 examples, 2 workers, 8 each
        together = [index for each in found for batch in each["drawn"][4 * epoch : 4 * epoch + 4] for index in batch]
        assert sorted(together) == list(range(64))
    model, data = network(), Points()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for one, two in zip(found[1]["drawn"], found[2]["drawn"], strict=True):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(data.x[one + two]), data.y[one + two])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    result = saved(tmp_path / "session" / "run")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(result[name], value, rtol=1e-5, atol=1e-6)
    records = [json.loads(line) for line in (tmp_path / "session" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["loss"] for record in records] == pytest.approx(losses, rel=1e-4)
    assert all(0 <= record["metrics"]["top1"] <= 1 for record in records)

    settings = {**DENSE, "max_steps": steps, "batch_size": 8, "local": 2, "threads": 1, "tensorboard": False}
    assert psnode.run(SameTask(), Config(train_dir=tmp_path / "train", **settings)) == 0
    model.load_state_dict(saved(tmp_path / "train"))
    assert {each["digest"] for each in found} == {digest(model)}  # on rank 0 too


def test_the_figures_of_a_session_are_those_of_its_records_and_of_plain_pytorch(mpirun: Any, tmp_path: Path) -> None:
    settings = {**DENSE, "epochs": 2, "lr_schedule": "cosine", "clip_grad_norm": 0.5}
    found = train(mpirun, tmp_path, settings)
    steps, per_epoch = 8, 4  # 64 examples, 2 workers, 8 each
    assert [each["lengths"] for each in found] == [[0, per_epoch, steps], [steps, per_epoch, steps], [steps, per_epoch, steps]]
    model, data = network(), Points()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step, (one, two) in enumerate(zip(found[1]["drawn"], found[2]["drawn"], strict=True), 1):
        optimizer.zero_grad()
        functional.cross_entropy(model(data.x[one + two]), data.y[one + two]).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        [rate] = schedule.get_last_lr()
        expected = [step, step // per_epoch, pytest.approx(rate), pytest.approx(norm, rel=1e-4)]
        assert found[1]["figures"][step - 1] == found[2]["figures"][step - 1] == expected
        optimizer.step()
        schedule.step()
    assert found[0]["figures"] == found[1]["figures"][-1:]  # rank 0, after the loop


def test_servers_update_weights_beside_the_master_and_have_the_final_ones(mpirun: Any, tmp_path: Path) -> None:
    """Check rank 3, a server: it draws no batch, and has the final weights of a session in which rank 0 has all weights."""
    settings = {**CODED, "epochs": 2, "lr_schedule": "cosine", "group_by": "layer"}
    star = train(mpirun, tmp_path / "star", settings)
    *others, server = train(mpirun, tmp_path / "served", {**settings, "topology": "sharded:servers=2"}, size=4)
    assert {each["digest"] for each in (*star, *others, server)} == {star[0]["digest"]}
    assert (server["drawn"], server["version"], server["own_memory"]) == ([], 8, True)
    assert server["lengths"] == others[0]["lengths"] == star[0]["lengths"]
    assert server["figures"] == [[*others[1]["figures"][-1][:3], None]]


def test_an_error_of_the_program_ends_the_servers_too(mpirun: Any, tmp_path: Path) -> None:
    plan = {"settings": {**DENSE, "max_steps": 50, "topology": "sharded:servers=2"}, "fail": [1, 3]}
    job = mpirun(4, [PROGRAM, tmp_path, json.dumps(plan)])
    assert job.code != 0, job
    [line] = [line for line in job.err.splitlines() if line.startswith("psnode: error:")]
    assert "rank 1: ValueError: the program's own mistake (session_program.py:" in line
    assert not list(tmp_path.glob("rank-*.json"))
    assert saved(tmp_path / "run")


@pytest.mark.sweep
@pytest.mark.parametrize("topology", ["star", "mesh", "gather"])
def test_the_best_evaluated_weights_keep_a_checkpoint_also_after_a_resume(mpirun: Any, tmp_path: Path, topology: str) -> None:
    """Check the kept checkpoints and evaluations. Runs without evaluations, whose weights are all on rank 0, have the same
    weights.
    """
    settings = {**CODED, "keep_last": 1, "group_by": "layer", "max_steps": 6}
    settings |= {"downlink": "dense"} if topology == "gather" else {}  # in which no weights are sent
    evaluated = {3: 0.9, 5: 0.25, 6: 0.5, 8: 0.375, 9: 0.125, 12: 0.25}
    dealt = {**settings, "topology": topology}
    first = train(mpirun, tmp_path / "run", dealt, evaluate=evaluated)
    again = train(mpirun, tmp_path / "run", {**dealt, "max_steps": 12, "resume": True}, evaluate=evaluated)
    assert [first[1]["best"], again[1]["best"]] == [[True, True, False], [False, True, False]]
    run = tmp_path / "run" / "run"
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    fields = {"step", "loss", "top1", "top5", "examples", "seconds", "metrics", "model"}  # the fields that psnode evaluate writes
    assert all(line.keys() == fields for line in lines)
    assert {line["step"]: line["loss"] for line in lines} == evaluated
    assert lines[0]["metrics"] == {"perplexity": pytest.approx(math.exp(0.9))}
    assert [path.name for path in checkpoint.complete(run)] == ["step-00000009", "step-00000012"]
    step, weights = weights_of(run, "best")
    assert step == 9
    train(mpirun, tmp_path / "until", {**settings, "max_steps": 9})
    assert {name: value.tolist() for name, value in weights.items()} == {
        name: value.tolist() for name, value in saved(tmp_path / "until" / "run").items()
    }
    whole = train(mpirun, tmp_path / "whole", {**settings, "max_steps": 12})
    assert whole[0]["digest"] == again[0]["digest"]  # evaluations and their checkpoints change nothing in the run


def test_a_figure_before_the_loop_is_refused_in_a_line_that_says_when_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    assert psnode.rank() == 2
    session = psnode.session(network(), train_dir=tmp_path, **DENSE)
    assert session.rank == 2
    with pytest.raises(ConfigurationError, match=r"s\.lr is known inside the loop over s\.batches\(loader\), and after it"):
        _ = session.lr


def test_a_coded_session_ends_with_equal_replicas_and_resumes_to_the_bit(mpirun: Any, tmp_path: Path) -> None:
    special = {"augment": True, "dropout": 0.2}
    whole = train(mpirun, tmp_path / "whole", {**CODED, "max_steps": 12}, **special)
    assert len({each["digest"] for each in whole}) == 1
    first = train(mpirun, tmp_path / "parts", {**CODED, "max_steps": 6}, **special)
    second = train(mpirun, tmp_path / "parts", {**CODED, "max_steps": 12, "resume": True}, **special)
    assert {each["digest"] for each in second} == {each["digest"] for each in whole}
    assert {each["loss"] for each in second} == {each["loss"] for each in whole}
    for rank in (1, 2):
        assert first[rank]["drawn"] + second[rank]["drawn"] == whole[rank]["drawn"]


def test_epochs_of_an_iterable_are_the_stated_steps_also_for_another_number_of_workers(mpirun: Any, tmp_path: Path) -> None:
    settings = {**DENSE, "eval_freq": 0, "epochs": 3}
    first = train(mpirun, tmp_path, {**settings, "max_steps": 8}, stream=4)
    assert [each["version"] for each in first] == [8] * 3
    for rank in (1, 2):  # two batches of 8, repeatedly
        assert first[rank]["drawn"] == [list(range(rank, 32, 4)), list(range(32 + rank, 64, 4))] * 4
    plan = {"settings": {**settings, "max_steps": None, "resume": True}, "stream": 4}
    job = mpirun(2, [PROGRAM, tmp_path, json.dumps(plan)])
    assert job.code == 0, job
    assert "the batches come from an iterable, which starts again" in job.err
    found = json.loads((tmp_path / "rank-1.json").read_bytes())
    assert found["version"] == 12
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [step / 4 for step in range(1, 13)]


def test_a_mistake_on_one_worker_ends_the_job_in_one_line_behind_a_checkpoint(mpirun: Any, tmp_path: Path) -> None:
    plan = {"settings": {**DENSE, "max_steps": 500, "eval_freq": 100}, "fail": [2, 3]}
    job = mpirun(3, [PROGRAM, tmp_path, json.dumps(plan)])
    assert job.code != 0, job
    [line] = [line for line in job.err.splitlines() if line.startswith("psnode: error:")]
    assert "rank 2: ValueError: the program's own mistake (session_program.py:" in line
    assert "go on with resume=True (PSNODE_RESUME=true)" in line
    assert not list(tmp_path.glob("rank-*.json"))
    step = json.loads((tmp_path / "run" / "summary.json").read_bytes())["steps"]
    assert 3 <= step < 500
    assert saved(tmp_path / "run")


def test_a_mistake_behind_the_last_step_shows_its_traceback_of_a_run_that_is_completed(mpirun: Any, tmp_path: Path) -> None:
    plan = {"settings": {**DENSE, "max_steps": 3, "eval_freq": 0}, "fail_behind": [2, 3]}
    job = mpirun(3, [PROGRAM, tmp_path, json.dumps(plan)])
    assert job.code == 1, job
    assert "ValueError: the program's own mistake" in job.err
    assert "psnode: error" not in job.err
    assert json.loads((tmp_path / "run" / "summary.json").read_bytes())["stop_reason"] == "completed"


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("leave", "the session was left after step 3, before the end of the run"),
        ("pass_over", "a batch was passed over"),
        ("repeat", "got another gradient"),
    ],
)
def test_a_loop_that_does_wrong_after_steps_ends_the_job_in_one_line_after_a_checkpoint(
    how: str, told: str, mpirun: Any, tmp_path: Path
) -> None:
    """Check that a wrong loop ends the job in one line after a checkpoint, although --min-workers would allow the job to
    continue without this worker.
    """
    plan = {"settings": {**DENSE, "max_steps": 500, "eval_freq": 0, "min_workers": 1}, how: [1, 3]}
    job = mpirun(3, [PROGRAM, tmp_path, json.dumps(plan)])
    assert job.code == 2, job
    [line] = [line for line in job.err.splitlines() if line.startswith("psnode: error:")]
    assert line.startswith("psnode: error: rank 1: ")
    assert told in line
    assert "Traceback" not in job.err  # no rank prints one, not even a rank that waits for the end
    step = json.loads((tmp_path / "run" / "summary.json").read_bytes())["steps"]
    assert step in (3, 4, 5)  # the gradients before the second pass are already sent
    assert f"the checkpoint of step {step} is written" in line
    assert (tmp_path / "run" / "checkpoints" / f"step-{step:08d}").is_dir()
    assert saved(tmp_path / "run")


def test_a_worker_that_dies_is_done_without_where_fewer_are_enough(mpirun: Any, tmp_path: Path) -> None:
    plan = {"settings": {**DENSE, "max_steps": 8, "eval_freq": 0, "min_workers": 1}, "die": [2, 3]}
    job = mpirun(3, [PROGRAM, tmp_path, json.dumps(plan)], fault_tolerant=True)
    assert job.code == 0, job
    left = [json.loads((tmp_path / f"rank-{rank}.json").read_bytes()) for rank in (0, 1)]
    assert left[0]["version"] == left[1]["version"] >= 8  # an epoch of one worker has twice as many steps
    assert left[0]["digest"] == left[1]["digest"]
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert ("lost", 2) in [(event["event"], event["rank"]) for event in events]


def test_a_signal_leaves_a_checkpoint_and_ends_every_rank_with_75(mpirun: Any, tmp_path: Path) -> None:
    plan = {"settings": {**DENSE, "max_steps": 100_000, "eval_freq": 0}}
    job = mpirun.start(3, [PROGRAM, tmp_path, json.dumps(plan)])
    job.wait_for("rank 1 at 5")
    job.process.send_signal(signal.SIGUSR1)  # mpirun passes this signal to the ranks
    done = job.wait(300)
    assert done.code == 75, done
    ended = json.loads((tmp_path / "run" / "summary.json").read_bytes())
    assert (ended["stop_reason"], ended["exit_code"]) == ("signal", 75)
    assert (tmp_path / "run" / "checkpoints" / f"step-{ended['steps']:08d}").is_dir()
    assert not list(tmp_path.glob("rank-*.json"))  # code after the block does not run


def test_a_signal_after_a_death_ends_the_ranks_that_are_left_with_75(mpirun: Any, tmp_path: Path) -> None:
    plan = {"settings": {**DENSE, "max_steps": 100_000, "eval_freq": 0, "min_workers": 1}, "die": [2, 3]}
    job = mpirun.start(3, [PROGRAM, tmp_path, json.dumps(plan)], fault_tolerant=True)
    job.wait_for("rank 1 at 6")
    job.process.send_signal(signal.SIGUSR1)
    done = job.wait(300)
    assert done.code == 75, done
    assert json.loads((tmp_path / "run" / "summary.json").read_bytes())["stop_reason"] == "signal"


AGAIN = """
import pathlib, sys
import torch
import psnode
from tests.mpi.session_program import Points, network

def begin_another():
    try:
        psnode.session(network(), train_dir=folder / "other").__enter__()
    except SystemExit as end:
        print("refused with", end.code)

folder, model = pathlib.Path(sys.argv[1]), network()
loader = torch.utils.data.DataLoader(Points(), batch_size=8, shuffle=True)
with psnode.session(model, train_dir=folder / "run", scheme="dense", lr=0.1, max_steps=2, threads=1, tensorboard=False) as s:
    begin_another()
    for _, x, y in s.batches(loader):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        s.step()
begin_another()
"""


def test_another_session_in_the_same_program_is_refused_in_a_line(mpirun: Any, tmp_path: Path) -> None:
    job = mpirun(2, ["-c", AGAIN, tmp_path])
    assert job.code == 0, job
    assert job.out.count("refused with 2") == 4  # twice on each rank
    assert job.err.count("error: this process takes part in a job already") == 2
    assert job.err.count("error: MPI has ended in this process and cannot begin again") == 2
    assert not (tmp_path / "other").exists()


def test_the_example_trains_and_tells_of_the_same_model_on_every_rank(mpirun: Any, tmp_path: Path) -> None:
    job = mpirun(3, [EXAMPLE, tmp_path / "run"])
    assert job.code == 0, job
    told = re.findall(r"^rank (\d): 200 steps, (\S+) %", job.out, re.M)
    assert sorted(rank for rank, _ in told) == ["0", "1", "2"]
    [right] = {percent for _, percent in told}
    assert float(right) > 70  # chance is 10


DEADLINES = """
import sys
from pathlib import Path

import psnode, torch
from psnode.transport.mpi import endpoint

def start(*, seconds):
    print(seconds)
    raise psnode.errors.DeadlineExceededError("noted")

endpoint.start = start
try:
    psnode.run(None, psnode.Config(start_deadline=90.0, train_dir=Path("one")))
except psnode.errors.DeadlineExceededError as error:
    print(error.exit_code)
with psnode.session(torch.nn.Linear(2, 1), train_dir="two", start_deadline=91.0):
    pass
"""


def test_the_start_deadline_bounds_mpis_own_start(mpirun: Any, tmp_path: Path) -> None:
    """Check that the deadline ends the start of real ranks, one of which never calls MPI, and that psnode.run and
    psnode.session both pass their deadline to the start of MPI.
    """
    os.mkfifo(tmp_path / "held")
    program = tmp_path / "held.py"
    program.write_text(
        "import os, sys\n"
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n"
        f"    open({str(tmp_path / 'held')!r}).read()\n"  # it is never written
        "from psnode.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    flags = ["--start-deadline", "1", "--train-dir", tmp_path / "run", "--max-steps", "2", "--dataset", "digits"]
    job = mpirun(2, [program, "train", *flags])
    assert job.code == 3, job
    [line] = [line for line in job.err.splitlines() if line.startswith("psnode: error:")]
    assert "rank 1 did not report within 1 s: " in line
    assert "raise --start-deadline" in line
    program.write_text(DEADLINES)
    place = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    noted = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=200, env={**os.environ, **place}
    )  # fmt: skip
    assert (noted.returncode, noted.stdout.split()) == (3, ["90.0", "3", "91.0"]), noted
