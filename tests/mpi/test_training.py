"""Real MPI jobs: they train, are killed, resume, stop on a signal, and end on every rank after an error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.jobs.job import run
from psnode.records import checkpoint
from psnode.records.metrics import read_records
from tests import halting
from tests.forking import FORKING

pytestmark = pytest.mark.serial

TRAIN = [
    "-m",
    "psnode",
    "train",
    "--batch-size",
    "8",
    "--threads",
    "1",
    "--no-tensorboard",
    "--lr",
    "0.02",
    "--log-interval",
    "1",
]


def summary(train_dir: Path) -> dict[str, Any]:
    return dict(json.loads((train_dir / "summary.json").read_bytes()))


def local(train_dir: Path, **changed: Any) -> Config:
    """Return the settings of the same job as TRAIN with three workers, for this process."""
    same = {"local": 3, "batch_size": 8, "threads": 1, "lr": 0.02, "eval_freq": 4, "tensorboard": False}
    return Config(train_dir=train_dir, **{**same, **changed})


def alive(text: str) -> list[int]:
    """Return the processes whose command line contains `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("scheme", "feedback", "killed_at"),
    [("identity", "none", 1), ("qsgd", "none", 7), ("atomo", "none", 8), ("qsgd", "ef", 13), ("atomo", "ef", 18)],
)
def test_a_killed_job_resumes_to_the_same_weights(
    mpirun: Any, tmp_path: Path, scheme: str, feedback: str, killed_at: int
) -> None:
    halt, gate = killed_at + 2, tmp_path / "gate"
    flags = [*TRAIN, "--scheme", scheme, "--feedback", feedback, "--max-steps", "20", "--eval-freq", "4"]
    flags += halting.flags(halt, gate)
    same = {"local": 2, "scheme": scheme, "feedback": feedback, "max_steps": 20, **halting.settings(halt, gate)}
    job = mpirun.start(3, [*flags, "--train-dir", tmp_path / "killed"])
    job.wait_for(f"step {killed_at}/")
    job.kill()
    gate.touch()
    run(local(tmp_path / "whole", **same))
    assert not (tmp_path / "killed" / "summary.json").exists()
    if killed_at == 18:
        resumed = mpirun(3, [*flags, "--train-dir", tmp_path / "killed", "--resume"])
        assert resumed.code == 0, resumed
    else:  # without importing PyTorch three more times
        assert run(local(tmp_path / "killed", **same, resume=True)) == 0
    assert summary(tmp_path / "killed")["model_hash"] == summary(tmp_path / "whole")["model_hash"]
    steps = [json.loads(line)["step"] for line in (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 21))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [(signal.SIGTERM, 75, "signal"), (signal.SIGUSR1, 75, "signal"), (signal.SIGINT, 130, "interrupted")],
)
def test_a_signal_to_the_master_leaves_a_checkpoint_to_go_on_from(
    mpirun: Any, tmp_path: Path, number: signal.Signals, code: int, reason: str
) -> None:
    flags = [*TRAIN, "--max-steps", "100000", "--eval-freq", "1000", "--train-dir", tmp_path / "run"]
    job = mpirun.start(2, flags)
    job.wait_for("step 5/")
    os.kill(job.rank_pids()[0], number)
    done = job.wait(300)
    assert done.code == code, done
    assert f"by {'Ctrl-C' if number == signal.SIGINT else number.name} after step" in done.out + done.err
    ended = summary(tmp_path / "run")
    assert ended["stop_reason"] == reason
    assert 5 <= ended["steps"] < 100000
    assert (tmp_path / "run" / "checkpoints" / f"step-{ended['steps']:08d}").is_dir()
    more = local(tmp_path / "run", local=1, max_steps=ended["steps"] + 3, eval_freq=1000, resume=True)
    assert run(more) == 0
    assert summary(tmp_path / "run")["steps"] == ended["steps"] + 3


def test_a_signal_to_a_worker_stops_the_job_with_a_checkpoint(mpirun: Any, tmp_path: Path) -> None:
    job = mpirun.start(2, [*TRAIN, "--max-steps", "100000", "--eval-freq", "1000", "--train-dir", tmp_path / "run"])
    job.wait_for("step 5/")
    os.kill(job.rank_pids()[1], signal.SIGTERM)
    assert job.wait(300).code == 75
    assert summary(tmp_path / "run")["stop_reason"] == "signal"


# one case for each place where a job is refused; tests/cli/test_cli.py has all refusals and their lines
BAD = [
    (["--unknown-flag"], 2, "--unknown-flag"),  # when the command line is read
    (["--lr", "fast"], 2, "--lr"),
    (["--dataset", "mnist", "--data-dir", "nowhere"], 2, "--data-dir"),  # when the task is made
    (["--num-aggregate", "1"], 2, "--num-aggregate"),  # because of the number of workers
    (["--lr", "1e12"], 4, "rank"),  # during the training
]


@pytest.mark.sweep
@pytest.mark.parametrize(("flags", "code", "hint"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_bad_input_is_one_line_and_ends_every_rank(mpirun: Any, tmp_path: Path, flags: list[str], code: int, hint: str) -> None:
    train_dir = tmp_path / "some-run"
    done = mpirun(3, [*TRAIN, "--max-steps", "20", "--train-dir", train_dir, *flags])
    assert done.code == code, done
    everything = done.out + done.err
    lines = [line for line in everything.splitlines() if "psnode: error:" in line]
    assert len(lines) == 1, everything
    assert hint in lines[0]
    assert "Traceback" not in everything
    assert code == 4 or not train_dir.exists()
    assert alive(str(train_dir)) == []


def test_one_rank_is_not_a_job(mpirun: Any, tmp_path: Path) -> None:
    done = mpirun(1, [*TRAIN, "--train-dir", tmp_path / "run"], timeout=300)
    assert done.code == 2
    assert "mpirun -n 3" in done.out + done.err


def mistaken(folder: Path) -> str:
    """Write a user's own task whose loss cannot be computed on rank 2, and return its path."""
    task = folder / "task.py"
    task.write_text(
        "import os\n"
        "from psnode.tasks.classification import Classification\n"
        "class Mine(Classification):\n"
        "    def __init__(self, options=None):\n"
        "        super().__init__('LeNet', 'digits', seed=1)\n"
        "    def loss(self, model, batch):\n"
        "        if os.environ['OMPI_COMM_WORLD_RANK'] == '2':\n"
        "            raise ValueError('my own mistake')\n"
        "        return super().loss(model, batch)\n"
    )
    return f"{task}:Mine"


def test_what_goes_wrong_on_one_worker_is_said_once_and_names_it(mpirun: Any, tmp_path: Path) -> None:
    flags = ["--task", mistaken(tmp_path), "--max-steps", "5", "--min-workers", "2", "--train-dir", tmp_path / "run"]
    done = mpirun(3, [*TRAIN, *flags])
    assert done.code == 1
    assert 'task.py", line 8, in loss' in done.out + done.err
    lines = [line for line in (done.out + done.err).splitlines() if "psnode: error:" in line]
    assert len(lines) == 1
    assert "rank 2" in lines[0]
    assert "my own mistake (task.py:8 in loss)" in lines[0]
    assert checkpoint.Checkpoint.open(checkpoint.latest(tmp_path / "run")).step == summary(tmp_path / "run")["steps"]


def test_the_others_end_as_they_should_when_one_worker_has_raised_an_exception(mpirun: Any, tmp_path: Path) -> None:
    """Check that the job continues. Under plain mpirun the end of one process would end all, so the failed worker stays and
    does nothing.
    """
    done = mpirun(3, [*TRAIN, "--task", mistaken(tmp_path), "--max-steps", "5", "--train-dir", tmp_path / "run"])
    assert done.code == 0, done
    assert summary(tmp_path / "run")["steps"] == 5
    assert "rank 2 is lost: ValueError: my own mistake (task.py:8 in loss)" in done.out + done.err
    assert "5 of 5 updates lack the gradient of one or more of 2 workers" in done.out + done.err


def test_a_job_over_mpi_is_followed_by_the_evaluator_and_ends_as_the_same_job_in_one_process(mpirun: Any, tmp_path: Path) -> None:
    train_dir = tmp_path / "mpi"
    evaluator = subprocess.Popen(
        [FORKING.python(), "-m", "psnode", "evaluate", "--train-dir", str(train_dir), "--interval", "0.1", "--patience", "300"],
        stdout=subprocess.PIPE,
        text=True,
    )
    done = mpirun(
        4, [*TRAIN, "--scheme", "atomo", "--max-steps", "20", "--eval-freq", "6", "--keep-last", "0", "--train-dir", train_dir]
    )
    assert done.code == 0, done
    out, _ = evaluator.communicate(timeout=300)
    assert evaluator.returncode == 0
    evaluated = [json.loads(line) for line in (train_dir / "evaluations.jsonl").read_text().splitlines()]
    assert [record["step"] for record in evaluated] == [6, 12, 18, 20]
    assert all(record["examples"] == 360 and 0 <= record["top1"] <= record["top5"] <= 1 for record in evaluated)
    assert out.count("top1") == 4

    assert run(local(tmp_path / "local", scheme="atomo", max_steps=20, eval_freq=6)) == 0
    assert summary(train_dir)["model_hash"] == summary(tmp_path / "local")["model_hash"]
    booked = [
        [(record["uplink_bytes"], record["downlink_bytes"]) for record in read_records(tmp_path / name / "metrics.jsonl")]
        for name in ("mpi", "local")
    ]
    assert booked[0] == booked[1] and len(booked[0]) == 20


def test_a_task_of_ones_own_runs_from_python(mpirun: Any, tmp_path: Path) -> None:
    program = tmp_path / "mine.py"
    program.write_text(
        "import sys\n"
        "import psnode\n"
        "from psnode.tasks.classification import Classification\n"
        "if __name__ == '__main__':\n"
        "    task = Classification('LeNet', 'digits', seed=1)\n"
        f"    config = psnode.Config(max_steps=5, train_dir={str(tmp_path / 'run')!r}, tensorboard=False)\n"
        "    sys.exit(psnode.run(task, config))\n"
    )
    done = mpirun(2, [program], timeout=300)
    assert done.code == 0, done
    assert summary(tmp_path / "run")["steps"] == 5


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="hiding a directory from a rank needs root")
def test_workers_that_do_not_see_the_directory_send_their_state(mpirun: Any, tmp_path: Path) -> None:
    """Check that worker 2 sends its state if it does not see the run's directory: in its own mount namespace, the parent
    directory is empty.
    """
    (tmp_path / "hidden").mkdir()
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(
        "import os, sys\n"
        "command = [sys.executable, *sys.argv[1:]]\n"
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '2':\n"
        f"    hide = 'mount -t tmpfs none {tmp_path / 'hidden'} && exec \"$@\"'\n"
        "    command = ['unshare', '--mount', 'sh', '-c', hide, 'sh', *command]\n"
        "os.execvp(command[0], command)\n"
    )
    train_dir = tmp_path / "hidden" / "run"
    flags = [*TRAIN, "--scheme", "qsgd", "--feedback", "ef", "--eval-freq", "4"]
    run(local(tmp_path / "whole", local=2, scheme="qsgd", feedback="ef", max_steps=10))
    forks = {"FORKING_RANKS": FORKING.python()}  # rank 2, which has other mounts, becomes an interpreter
    first = mpirun(3, [wrapper, *flags, "--max-steps", "6", "--train-dir", train_dir], env=forks)
    assert first.code == 0, first
    assert sorted(path.name for path in (train_dir / "checkpoints" / "step-00000006").glob("worker-*")) == [
        "worker-001.safetensors",
        "worker-002.safetensors",
    ]
    second = mpirun(3, [wrapper, *flags, "--max-steps", "10", "--train-dir", train_dir, "--resume"], env=forks)
    assert second.code == 0, second
    assert summary(train_dir)["model_hash"] == summary(tmp_path / "whole")["model_hash"]


@pytest.mark.long
def test_launch_runs_a_job_and_returns_its_exit_code(tmp_path: Path) -> None:
    flags = ["--max-steps", "3", "--batch-size", "8", "--threads", "1", "--no-tensorboard", "--train-dir", str(tmp_path / "run")]
    python, ranks = FORKING.launching()
    command = [python, "-m", "psnode", "launch", "-n", "1", "--", "train", *flags]
    for code in (0, 2):  # at the second start the directory holds a run
        done = subprocess.run(command, env={**os.environ, **ranks}, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == code, done.stdout + done.stderr
    assert "already holds a run" in done.stdout + done.stderr
