"""The script printed by `psnode launch --export slurm`: its requests to Slurm, the hosts of its ranks, and refusals."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from psnode.cli.commands import app, main
from psnode.jobs.slurm import BatchJob, batch_script

TRAIN = ("train", "--network", "LeNet", "--dataset", "digits", "--train-dir", "runs/a run")
SCONTROL = "#!/bin/sh\nprintf 'n1\\nn2\\nn3\\n'\n"
STARTER = """#!/bin/bash
for ((i = 1; i <= $#; i++)); do [[ ${!i} != --hostfile ]] || { j=$((i + 1)); hosts=${!j}; }; done
cat "${hosts:-$SLURM_HOSTFILE}" >placed
printf '%s\\n' "$@" >arguments
"""


def run(script: str, folder: Path) -> tuple[list[str], list[str]]:
    """Run the script with stand-ins for the starter and scontrol; return the hosts and arguments that the starter gets."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, text in (("scontrol", SCONTROL), ("psnode", STARTER), ("srun", STARTER)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (folder / "job.sh").write_text(script)
    env = {"PATH": f"{programs}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_ID": "17"}
    done = subprocess.run(["bash", "job.sh"], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return (folder / "placed").read_text().splitlines(), (folder / "arguments").read_text().splitlines()


@pytest.mark.parametrize("starter", ["mpirun", "srun"])
@pytest.mark.parametrize(
    ("workers", "per_node", "master", "ranks", "nodes", "slots"),
    [
        (5, 2, "beside", [3, 2, 1], 3, 3),
        (4, 2, "apart", [1, 2, 2], 3, 2),
        (3, 1, "beside", [2, 1, 1], 3, 2),
        (2, 1, "apart", [1, 1, 1], 3, 1),
        (1, 4, "beside", [2], 1, 2),
    ],
)
def test_ranks_fill_the_nodes_from_the_masters_on(
    starter: str, workers: int, per_node: int, master: str, ranks: list[int], nodes: int, slots: int, tmp_path: Path
) -> None:
    job = BatchJob(workers, workers_per_node=per_node, master=master, starter=starter, environment=tmp_path)
    script = batch_script(job, TRAIN, Path("runs/a run"))
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", script, re.M))
    assert (options["nodes"], options["ntasks-per-node"]) == (str(nodes), str(slots))
    placed, arguments = run(script, tmp_path)
    if starter == "srun":
        assert placed == [f"n{node}" for node, count in enumerate(ranks, 1) for _ in range(count)]
        assert f"--ntasks={workers + 1}" in arguments
    else:
        given = [int(line.partition(" slots=")[2]) for line in placed][: len(ranks)]
        assert given[:-1] == ranks[:-1]
        assert given[-1] >= ranks[-1]  # mpirun knows the number of ranks, and leaves the last places empty
        assert arguments[:3] == ["launch", "-n", str(workers)]


@pytest.mark.parametrize("starter", ["mpirun", "srun"])
def test_the_script_is_clean_shell_with_all_options_before_the_first_command(starter: str, tmp_path: Path) -> None:
    beside = Path(sys.executable).with_name("shellcheck")
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("no shellcheck: install the extra `dev`")
    job = BatchJob(4, 1, 2, partition="long", account="me", time="2-12", gres="gpu:4", cpus_per_rank=3, starter=starter)
    text = batch_script(job, [*TRAIN, "--init-from", "a file"], Path("runs/a run"))
    assert text.rindex("#SBATCH") < text.index("set -euo pipefail")  # Slurm reads no #SBATCH line after the first command
    (tmp_path / "job.sh").write_text(text)
    done = subprocess.run([shellcheck, tmp_path / "job.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_run_begins_with_given_weights_only_the_first_time(tmp_path: Path) -> None:
    script = batch_script(BatchJob(2, environment=tmp_path), [*TRAIN, "--init-from", "w", "--resume"], Path("runs/a run"))
    _, arguments = run(script, tmp_path)
    assert arguments[-2:] == ["--init-from", "w"]
    assert "--resume" not in arguments
    (tmp_path / "runs/a run/checkpoints/latest").mkdir(parents=True)
    _, arguments = run(script, tmp_path)
    assert arguments[-1] == "--resume"
    assert "--init-from" not in arguments


def test_what_the_command_line_says_is_what_slurm_is_asked_for() -> None:
    asked = "--workers-per-node 4 --partition gpu --account lab --gres gpu:4 --time 4:00:00 --cpus-per-rank 6 --kill-after 50"
    words = ["launch", "--export", "slurm", "-n", "7", *asked.split(), "--sbatch", "qos=long", "--sbatch", "exclusive", "--"]
    found = CliRunner().invoke(app, [*words, *TRAIN, "--spares", "1"], standalone_mode=False)
    lines = {line.removeprefix("#SBATCH --") for line in found.output.splitlines() if line.startswith("#SBATCH")}
    assert lines == {
        "job-name=psnode", "nodes=2", "ntasks-per-node=5", "cpus-per-task=6", "partition=gpu", "account=lab", "gres=gpu:4",
        "time=4:00:00", "signal=B:USR1@60", "requeue", "open-mode=append", "output=psnode-%j.log", "qos=long", "exclusive",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "train", "warned"),
    [
        ("--gres gpu:4", "", True),
        ("--gres craynetwork:1,gpu:a100:2", "", True),
        ("--sbatch gpus-per-node=4", "", True),
        ("--sbatch tres-per-node=gres/gpu:1", "", True),
        ("--gres gpu:4", "--enable-gpu", False),
        ("--gres gpu:1", "--gpu-master", False),
        ("--gres lustre:1 --partition gpu --sbatch qos=gpu", "", False),
        ("", "", False),
    ],
)
def test_gpus_that_no_rank_would_use_are_told(options: str, train: str, warned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--export", "slurm", "-n", "2", *options.split(), "--", *TRAIN, *train.split()]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("#!/usr/bin/env bash\n")
    assert ("--enable-gpu" in err) == warned
    assert err.count("\n") == warned


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--time 4:00:00 -- train --train-dir r", "--time is for a batch script: add --export slurm"),
        ("--job-name x -- train --train-dir r", "--job-name is for a batch script"),
        ("--export slurm -- train", "--export needs --train-dir"),
        ("--export slurm -- codecs", "--export needs a training run"),
        ("--export slurm -- program.py", "write train, not a program"),
        ("--export slurm --hostfile h -- train --train-dir r", "--hostfile has no meaning with --export"),
        ("--export slurm --restarts 2 -- train --train-dir r", "--restarts has no meaning with --export"),
        ("--export slurm --time soon -- train --train-dir r", "--time 'soon': use sbatch's notation"),
        ("--export slurm --sbatch --qos=x -- train --train-dir r", "without its dashes"),
        ("--export slurm --sbatch signal=USR2 -- train --train-dir r", "the script sets signal itself"),
        ("--export slurm --starter srun --mpirun-arg -v -- train --train-dir r", "no meaning with --starter srun"),
    ],
)
def test_what_makes_no_script_is_refused_in_a_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "-n", "2", *words.split()]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
