"""`launch` with real mpirun jobs of small programs that are stopped, hang, and are killed by real signals."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from psnode.errors import ConfigurationError
from psnode.jobs.launch import find_mpirun, launch, mpirun_command, resuming
from psnode.jobs.supervision import Escalation
from psnode.jobs.sweeping import members
from psnode.records import directory_lock
from tests.forking import FORKING

pytest.importorskip("mpi4py")

ROOT = Path(__file__).resolve().parents[2]

PROLOGUE = """
import os, signal, sys, time
from pathlib import Path
folder, rank = Path({folder!r}), int(os.environ["OMPI_COMM_WORLD_RANK"])
def mark(name, text=""):
    temporary = folder / f".{{name}}.{{rank}}"
    temporary.write_text(str(text))
    temporary.rename(folder / name)
"""


class Launched:
    """`launch` in a new process, which can be sent signals; ranks leave their traces in `folder`."""

    def __init__(self, folder: Path, workers: int, body: str, **keywords: object) -> None:
        self.folder = folder
        program = folder / "program.py"
        program.write_text(PROLOGUE.format(folder=str(folder)) + textwrap.dedent(body))
        call = f"launch({workers}, [], program=[sys.executable, {str(program)!r}], **{keywords!r})"
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import sys\nfrom pathlib import PosixPath\nfrom psnode.jobs.launch import launch\nsys.exit({call})",
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for(self, name: str) -> str:
        """Block until a rank has written a file (atomically), and return its contents."""
        end = time.monotonic() + 300
        while not (self.folder / name).exists():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                pytest.fail(f"{name} did not appear (exit code {self.process.poll()}): {self.process.communicate()}")
            time.sleep(0.02)
        return (self.folder / name).read_text()

    def end(self) -> tuple[int, str]:
        """Return exit code and output of a launch that ends by itself."""
        out, _ = self.process.communicate(timeout=300)
        return self.process.returncode, out


def leftover(folder: Path) -> list[str]:
    """Return the processes that run the test's program."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder / "program.py").encode() in words and b"launch import" not in words:
            found.append(entry.name)
    return found


def test_master_and_workers_run_and_rank_zero_decides_the_exit_code(tmp_path: Path) -> None:
    body = """
    mark(f"ran-{rank}")
    while rank == 0 and not all((folder / f"ran-{other}").exists() for other in (1, 2)):
        time.sleep(.01)
    sys.exit(75 if rank == 0 else 0)
    """
    job = Launched(tmp_path, 2, body)
    code, out = job.end()
    assert code == 75, out
    assert sorted(p.name for p in tmp_path.glob("ran-*")) == ["ran-0", "ran-1", "ran-2"]


@pytest.mark.parametrize("request_to_stop", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_request_to_stop_reaches_rank_zero_as_usr1_with_time_for_a_checkpoint(
    tmp_path: Path, request_to_stop: signal.Signals
) -> None:
    body = """
    def stop(number, frame):
        time.sleep(1)          # longer than mpirun leaves between its own TERM and KILL
        if rank == 0:
            mark("checkpoint", number)
        sys.exit(75 if rank == 0 else 0)
    signal.signal(signal.SIGUSR1, stop)
    if rank == 0:
        mark("ready")
    time.sleep(40)
    """
    job = Launched(tmp_path, 1, body)
    job.wait_for("ready")
    job.process.send_signal(request_to_stop)
    code, out = job.end()
    assert (tmp_path / "checkpoint").read_text() == str(int(signal.SIGUSR1)), out
    assert code == (130 if request_to_stop == signal.SIGINT else 75), out
    assert leftover(tmp_path) == []


def test_ranks_that_ignore_every_request_are_killed_within_the_deadline(tmp_path: Path) -> None:
    body = """
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    mark(f"ready-{rank}")
    time.sleep(400)
    """
    job = Launched(tmp_path, 1, body, kill_after=2.0)
    job.wait_for("ready-0")
    job.wait_for("ready-1")
    job.process.terminate()
    code, out = job.end()  # long before the ranks would end
    assert code != 0, out
    assert leftover(tmp_path) == []


def test_a_stopped_worker_does_not_keep_a_finished_job_alive(tmp_path: Path) -> None:
    body = """
    if rank == 1:
        mark("ready")
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(40)
    while not (folder / "ready").exists():
        time.sleep(.01)
    time.sleep(6)  # the launcher looks for rank 0 every second
    """
    job = Launched(tmp_path, 1, body, kill_after=1.0)
    code, out = job.end()
    assert code == 0, out
    assert leftover(tmp_path) == []


SUMMARY = """
def summary(code, reason):
    import json
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / "config.json").write_text("{}")
    (folder / "run" / "summary.json").write_text(json.dumps({"exit_code": code, "stop_reason": reason}))
"""


def test_the_exit_code_is_rank_zeros_whatever_the_workers_leave_with(tmp_path: Path) -> None:
    body = (
        SUMMARY
        + """
if rank == 0:
    summary(75, "quorum")
    mark("written")
    time.sleep(1)
while not (folder / "written").exists():
    time.sleep(0.01)
sys.exit(75 if rank == 0 else 3)
"""
    )
    code, out = Launched(tmp_path, 2, body, run_directory=tmp_path / "run").end()
    assert code == 75, out


def test_the_summary_of_an_earlier_start_says_nothing_of_this_one(tmp_path: Path) -> None:
    """Check that the old summary of a completed run does not count: the job is resumed and killed before the first round,
    which mpirun, tolerant of deaths, calls a success.
    """
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "run" / "summary.json").write_text('{"exit_code": 0, "stop_reason": "completed"}')
    job = Launched(tmp_path, 1, "os.kill(os.getpid(), signal.SIGKILL)", run_directory=tmp_path / "run")
    code, out = job.end()
    assert code not in (0, 75), out


def test_a_job_that_is_told_to_stop_before_it_can_say_anything_is_to_be_started_again(tmp_path: Path) -> None:
    body = "if rank == 0:\n    mark('ready')\ntime.sleep(40)"
    job = Launched(tmp_path, 1, body, run_directory=tmp_path / "run", kill_after=3.0)
    job.wait_for("ready")
    job.process.terminate()
    code, out = job.end()
    assert code == 75, out
    assert leftover(tmp_path) == []


@pytest.mark.parametrize(("reason", "starts"), [("signal", 1), ("quorum", 3)])
def test_a_master_that_was_told_to_stop_is_not_started_again(tmp_path: Path, reason: str, starts: int) -> None:
    body = (
        SUMMARY
        + f"if rank == 0:\n    summary(75, {reason!r})\n    mark(f'start-{{os.getpid()}}')\nsys.exit(75 if rank == 0 else 0)"
    )
    code, out = Launched(tmp_path, 1, body, run_directory=tmp_path / "run", restarts=2).end()
    assert code == 75, out
    assert len(list(tmp_path.glob("start-*"))) == starts, out


@pytest.mark.parametrize(
    "flags",
    [["--init-from", "w.safetensors"], ["--init-from=w.safetensors", "--new-head"], ["--init-from", "w", "--no-new-head"], []],
)
def test_a_job_that_began_with_weights_of_others_goes_on_with_its_own(flags: list[str]) -> None:
    """Check that a restart drops --init-from, since --resume together with --init-from is refused."""
    assert resuming(["train", *flags, "--lr", "0.1"]) == ["train", "--lr", "0.1", "--resume", "--trust-run"]
    assert resuming(["train", "--resume", *flags]) == ["train", "--resume"]


def test_every_mpirun_has_a_folder_of_its_own_that_goes_with_it(tmp_path: Path) -> None:
    """Check that each mpirun has its own folder, which is removed: in a shared folder mpirun fails over files left by a
    killed mpirun with the same process id.
    """
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        job = Launched(tmp_path / name, 1, 'mark(f"session-{rank}", os.environ["PMIX_SERVER_TMPDIR"])')
        found.append(Path(job.wait_for("session-0")).parent)
        assert job.end()[0] == 0
    assert found[0] != found[1]
    assert not any(folder.exists() for folder in found)


def test_a_second_interrupt_asks_for_the_end_at_once() -> None:
    stop = Escalation(10.0)
    assert stop.due(0.0) == []
    stop.request(signal.SIGINT, 100.0)
    assert stop.due(100.0) == [signal.SIGUSR1]
    assert stop.due(101.0) == []
    stop.request(signal.SIGINT, 102.0)
    assert stop.due(102.0) == [signal.SIGTERM]
    assert stop.due(103.4) == []
    assert stop.due(103.5) == [signal.SIGKILL]
    assert stop.due(200.0) == []


def test_the_session_of_a_process_holds_its_children_and_nobody_else() -> None:
    shell = subprocess.Popen(["sh", "-c", "sleep 30 & sleep 30"], start_new_session=True)
    try:
        end = time.monotonic() + 120
        while len(members(shell.pid)) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        found = members(shell.pid)
        assert shell.pid in found
        assert len(found) == 3
        assert os.getpid() not in found
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_a_plain_list_of_hosts_gets_one_rank_a_host_and_slots_are_filled_in_order(tmp_path: Path) -> None:
    plain, slots = tmp_path / "plain", tmp_path / "slots"
    plain.write_text("10.0.0.1\n10.0.0.2\n\n10.0.0.3\n")
    slots.write_text("# the fleet\n10.0.0.1 slots=1\n10.0.0.2 slots=4\n")
    line = mpirun_command(find_mpirun(), 3, plain, (), {"PSNODE_LR": "1", "HOME": "/root"})
    assert line[line.index("--hostfile") + 1] == str(plain)
    assert line[line.index("--map-by") + 1] == "node"
    assert [line[i + 1] for i, word in enumerate(line) if word == "-x"] == ["PSNODE_LR"]
    assert "--map-by" not in mpirun_command(find_mpirun(), 3, slots, (), {})


def test_the_users_own_mpirun_arguments_win() -> None:
    line = mpirun_command(find_mpirun(), 2, None, ("--mca", "btl", "tcp,self", "--bind-to", "core"), {})
    assert line.count("btl") == 1
    assert line.count("--bind-to") == 1
    assert "btl" not in mpirun_command(find_mpirun(), 2, None, (), {"OMPI_MCA_btl": "tcp,self"})


@pytest.mark.parametrize("text", ["", "\n# nothing\n"])
def test_a_hostfile_without_hosts_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ConfigurationError, match="names no host"):
        launch(1, [], hostfile=tmp_path / "hosts")


def test_a_missing_hostfile_and_a_job_without_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        launch(1, [], hostfile=tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="at least 1 worker"):
        launch(0, [])


def test_a_directory_where_another_job_is_at_work_is_refused_before_mpirun_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_lock, "_DYING", 0.2)
    run, started = tmp_path / "run", tmp_path / "started"
    run.mkdir()
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    program = [sys.executable, "-c", f"open({str(started)!r}, 'w')"]
    with (run / ".lock").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match=r"another job is at work in .*run: wait for its end") as caught:
            launch(1, [], program=program, run_directory=run)
    assert caught.value.exit_code == 2
    assert not started.exists()
    launch(1, [], program=program, run_directory=run)
    assert started.exists()


def test_root_is_told_what_is_set_for_it(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMPI_ALLOW")}
    call = "from psnode.jobs.launch import launch; import sys; sys.exit(launch(1, [], program=['true']))"
    done = subprocess.run(
        [sys.executable, "-c", call], env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "running as root" in done.stderr


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("arguments", "environment", "links"),
    [
        ((), {}, "self,sm"),
        (("--host", "a,b"), {}, "self,sm,tcp"),
        (("--mca", "orte_default_hostfile", "x"), {}, "self,sm,tcp"),
        (("--machinefile", "x"), {}, "self,sm,tcp"),
        ((), {"SLURM_JOB_ID": "3"}, "self,sm,tcp"),
        ((), {"PRTE_MCA_prte_default_hostfile": "x"}, "self,sm,tcp"),
    ],
)
def test_a_job_that_stays_on_this_host_uses_no_network(
    arguments: tuple[str, ...], environment: dict[str, str], links: str
) -> None:
    line = mpirun_command(find_mpirun(), 2, None, arguments, environment)
    assert line[line.index("btl") + 1] == links


JOB = f"""
sys.path.insert(0, {str(ROOT)!r})
from psnode.jobs import job_end
job_end.begin()
"""


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 3),
        ("os._exit(0) if rank == 0 else None", 3),
        ("job_end.end(75)", 75),  # the code of psnode.run, which the program does not pass on
        ("job_end.end(0)\nsys.exit(9 if rank == 0 else 0)", 9),
        ("job_end.end(0)\nos._exit(0)", 0),
        ("job_end.end(4)\njob_end.begin()\njob_end.end(0)", 0),
    ],
    ids=["killed", "left", "stopped", "failed later", "done", "the second one done"],
)
def test_a_programs_job_that_has_not_come_to_its_end_is_not_0(tmp_path: Path, body: str, code: int) -> None:
    found, out = Launched(tmp_path, 1, JOB + body).end()
    assert found == code, out


@pytest.mark.parametrize("body", ["", JOB, JOB + "job_end.end(0)\n"], ids=["before the job", "amid the job", "after the job"])
def test_a_program_that_is_stopped_is_not_0(tmp_path: Path, body: str) -> None:
    job = Launched(tmp_path, 1, body + "mark(f'ready-{rank}')\ntime.sleep(400)", kill_after=3.0)
    for rank in (0, 1):
        job.wait_for(f"ready-{rank}")
    job.process.terminate()
    code, out = job.end()
    assert code == 75, out


def test_a_job_whose_output_nobody_reads_goes_on_and_heeds_no_signal_that_is_ignored(tmp_path: Path) -> None:
    body = """
    for line in range(50):
        print(rank, line, flush=True)
        time.sleep(0.01)
    mark(f"printed-{rank}")
    while not (folder / "go").exists():
        time.sleep(0.01)
    """
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        job = Launched(tmp_path, 1, body)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert job.process.stdout is not None
    job.process.stdout.close()
    for rank in (0, 1):
        job.wait_for(f"printed-{rank}")
    job.process.send_signal(signal.SIGHUP)
    job.process.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    assert job.process.wait(300) == 0


def test_a_hostfile_on_which_no_job_can_start_is_told_in_one_line(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=1\n")
    with pytest.raises(ConfigurationError, match=r"hosts has 1 slot, and the job has 3 ranks"):
        launch(2, [], hostfile=hosts, program=["true"])
    with pytest.raises(ConfigurationError, match="too few slots"):  # found by mpirun
        launch(2, [], hostfile=hosts, program=["true"], mpirun_args=["--timeout", "100"])
    hosts.write_text("nowhere.invalid slots=4\n")
    with pytest.raises(ConfigurationError, match=r"no host nowhere\.invalid is known here: correct"):
        launch(2, [], hostfile=hosts, program=["true"])


def run_launch(
    folder: Path, workers: int, *command: str, python: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `psnode launch -- COMMAND` in `folder` until it ends."""
    path = os.pathsep.join([environment.pop("PYTHONPATH", ""), str(ROOT)]).strip(os.pathsep)
    return subprocess.run(
        [python, "-m", "psnode", "launch", "-n", str(workers), "--", *command],
        cwd=folder, env={**os.environ, **environment, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


ENDS = """
import multiprocessing, os, signal, sys

class Own:
    pass

def double(number):
    return 2 * number

if __name__ == "__main__":
    how, rank = sys.argv[1], os.environ["OMPI_COMM_WORLD_RANK"]
    if how == "whole":
        assert sys.modules["__main__"].Own is Own
        assert (os.path.dirname(__file__), sys.argv, sys.path[0]) == (os.getcwd(), ["ends.py", "whole"], os.getcwd())
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.map(double, [4]) == [8]
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
    if how == "all killed" or how == "killed" + rank:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "fork killed":  # the end of a fork is none of the rank's
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "at once":
        os._exit(0)
    if how == "another":
        os.execvp("true", ["true"])
    if how == "fault":
        raise ValueError
"""


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("how", "code"),
    [("whole", 0), ("at once", 0), ("another", 0), ("fault", 1), ("all killed", 3), ("killed0", 3), ("fork killed", 3)],
)
def test_a_program_without_a_job_is_0_if_rank_0_came_to_its_end_and_3_if_it_was_killed(
    tmp_path: Path, how: str, code: int
) -> None:
    (tmp_path / "ends.py").write_text(ENDS)
    done = run_launch(tmp_path, 1, "ends.py", how)
    assert done.returncode == code, done
    assert done.stderr.count("psnode: error: rank 0 was killed") == (code == 3), done


@pytest.mark.long
@pytest.mark.parametrize("command", [["ends.py", "whole"], ["codecs"]], ids=["program", "command"])
def test_ranks_that_are_killed_during_their_imports_are_no_success(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "ends.py").write_text(ENDS)
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\nif 'OMPI_COMM_WORLD_RANK' in os.environ:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = run_launch(tmp_path, 1, *command, PYTHONPATH=str(tmp_path))
    assert done.returncode == 3, done
    (tmp_path / "sitecustomize.py").unlink()
    assert run_launch(tmp_path, 1, *command).returncode == 0


@pytest.mark.parametrize("quiet", [False, True])
def test_the_first_line_tells_how_many_ranks_start_unless_it_is_to_be_quiet(tmp_path: Path, quiet: bool) -> None:
    options = ["--network", "FC", "--max-steps", "1", "--no-tensorboard", "--threads", "1", "--scheme", "dense"]
    python, ranks = FORKING.launching()
    done = run_launch(tmp_path, 2, "train", *options, *["--quiet"] * quiet, python=python, **ranks)
    assert done.returncode == 0, done
    heads = [line for line in done.stderr.splitlines() if "running as root" not in line][:1]
    assert heads == ([] if quiet else ["psnode: starting 3 ranks on 1 host"]), done


def test_the_launcher_of_a_program_imports_nothing_large() -> None:
    code = "import sys, psnode.cli, psnode.jobs.launch\nprint({'torch', 'numba', 'scipy', 'mpi4py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "set()\n"


def test_a_rank_ends_without_the_last_collections_and_loses_no_line_of_an_open_file(tmp_path: Path) -> None:
    code = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count() > 1000))  # the first is the last to be called
from psnode.jobs import job_end
job_end.watch()
class Own:
    pass
own = Own()
own.itself, own.file = own, open(sys.argv[1], "w")
own.file.write("a line")
del own
"""
    line = [sys.executable, "-W", "ignore", "-c", code, tmp_path / "lines"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "True\n"
    assert (tmp_path / "lines").read_text() == "a line"


LEAVES = """
import os, sys
import psnode, torch

how, rank = sys.argv[1], os.environ["OMPI_COMM_WORLD_RANK"]
model = torch.nn.Linear(2, 1)

def constrain(model):
    if how == "serving" and rank == "0":
        sys.exit(0)

with psnode.session(
    model, train_dir="run", scheme="dense", lr=0.01, max_steps=1000, tensorboard=False, quiet=True, constrain=constrain
) as s:
    if how == "before" + rank:
        sys.exit(0)
    for x in s.batches([torch.ones(4, 2)] * 10, steps_per_epoch=10):
        model(x).square().mean().backward()
        s.step()
        if how == "amid" + rank and s.version >= 3:
            sys.exit(0)
"""


@pytest.mark.long
@pytest.mark.parametrize(("how", "rank"), [("before0", 0), ("before1", 1), ("serving", 0), ("amid1", 1)])
def test_a_rank_that_leaves_with_0_amid_a_session_ends_the_job_with_1(tmp_path: Path, how: str, rank: int) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES)
    python, ranks = FORKING.launching()
    done = run_launch(tmp_path, 2, "leaves.py", how, python=python, **ranks)
    assert done.returncode == 1, done
    told = [line for line in done.stderr.splitlines() if "SystemExit: 0 (leaves.py:" in line]
    assert told or how == "before0", done
    assert all(f"rank {rank}" in line for line in told) or rank == 0, done


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting needs root and unshare")
def test_ranks_of_a_host_with_little_shared_memory_reach_each_other_all_the_same(tmp_path: Path) -> None:
    """Check that ranks exchange messages on a host with a container's /dev/shm of 1 MB, although Open MPI wants 17 MB per
    rank.
    """
    program = tmp_path / "program.py"
    program.write_text("from mpi4py import MPI\nprint('sum', MPI.COMM_WORLD.allreduce(1))\n")
    inside = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    launch_it = [sys.executable, "-m", "psnode", "launch", "-n", "1", "--", str(program)]
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", inside, "inside", *launch_it],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    if done.stderr.startswith(("unshare: ", "mount: ")):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done
    assert done.stdout.count("sum 2") == 2
    assert [line for line in done.stderr.splitlines() if "/dev/shm" in line and "33.6 MB" in line], done.stderr
