"""A fork behaves as a new interpreter does: exit status, streams, arguments, results. A process that would
differ is not forked.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.forking import FORKING

FORKED = "import sys; print('numba' in sys.modules)"  # a new interpreter has not imported Numba
PLACE = "import os, sys; print(sys.argv, os.getcwd(), os.environ['FORKING_TEST'], sys.stdin.read(), __name__)"


def run(*words: str | Path, python: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Run `python words`, by default as a fork."""
    line = [python or FORKING.python(), *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, env={**os.environ, **more}, input="in", check=False, timeout=600)


@pytest.mark.parametrize(
    "program",
    [
        "pass",
        "raise SystemExit(7)",
        "raise SystemExit('words')",
        "import os; os._exit(3)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.kill(os.getpid(), 15)",
        "import atexit; atexit.register(print, 'last'); print('first')",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(.2), print('joined'))).start()",
        "import sys; sys.stdout.write('no newline'); sys.stderr.write('to the other')",
        PLACE,
    ],
)
def test_a_fork_ends_and_writes_as_an_interpreter_does(program: str) -> None:
    forked, own = (run("-c", program, "a", "-b", python=python, FORKING_TEST="é") for python in ("", sys.executable))
    assert (forked.returncode, forked.stdout, forked.stderr) == (own.returncode, own.stdout, own.stderr)


def test_an_exception_ends_it_with_1_and_is_shown() -> None:
    done = run("-c", "def f():\n    1 / 0\nf()")
    assert done.returncode == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_files_and_modules_are_main(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 5")
    program = tmp_path / "program.py"
    program.write_text("import beside, sys\nprint(beside.value, sys.argv[1:], __name__, __file__ == sys.argv[0])")
    assert run(program, "x").stdout == "5 ['x'] __main__ True\n"
    assert "quantile" in run("-m", "timeit", "-n", "1", "-s", "import statistics", "print(statistics.quantiles.__name__)").stdout


def test_it_is_a_fork_unless_it_would_differ(tmp_path: Path) -> None:
    assert run("-c", FORKED).stdout == "True\n"
    for variable in ("OMP_NUM_THREADS", "NUMBA_DISABLE_JIT", "LC_ALL", "PYTHONHASHSEED"):
        assert run("-c", FORKED, **{variable: "2" if variable != "LC_ALL" else "C"}).stdout == "False\n", variable
    assert run("-c", FORKED, PYTHONPATH=str(tmp_path)).stdout == "False\n"  # the path may hold another psnode
    assert run("-E", "-c", FORKED).stdout == "False\n"
    nice = subprocess.run(["nice", "-n", "3", FORKING.python(), "-c", FORKED], capture_output=True, text=True, check=True)
    assert nice.stdout == "False\n"


def test_limits_are_taken_over() -> None:
    program = f"{FORKED}; import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    line = f"ulimit -n 321; exec {FORKING.python()} -c '{program.replace(chr(39), chr(34))}'"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n(321, 321)\n"


def started(program: str) -> tuple[subprocess.Popen[str], int]:
    """Start a fork; return its client and the fork's own process id."""
    client = subprocess.Popen([FORKING.python(), "-c", f"import os; print(os.getpid(), flush=True); {program}"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
    assert client.stdout is not None
    return client, int(client.stdout.readline())


def ended(pid: int) -> bool:
    """Wait up to 600 s for a process to disappear, and return True if it has."""
    end = time.monotonic() + 600
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.01)
    return not Path(f"/proc/{pid}").exists()


def test_signals_reach_the_fork() -> None:
    client, _ = started("import signal; signal.signal(10, lambda *_: os._exit(5)); print(1, flush=True); signal.pause()")
    assert client.stdout is not None
    client.stdout.readline()
    client.send_signal(signal.SIGUSR1)
    assert client.wait(600) == 5
    client.stdout.close()


def test_it_is_killed_with_its_client() -> None:
    client, fork = started("import signal; signal.pause()")
    assert fork != client.pid
    client.kill()
    assert client.wait(600) == -signal.SIGKILL
    assert client.stdout is not None
    client.stdout.close()
    assert ended(fork)


def test_a_run_is_that_of_an_interpreter(tmp_path: Path) -> None:
    flags = ["--local", "1", "--max-steps", "2", "--threads", "1", "--no-tensorboard", "--scheme", "dense"]
    hashes = []
    for name, python in (("forked", ""), ("own", sys.executable)):
        done = run("-m", "psnode", "train", *flags, "--train-dir", tmp_path / name, python=python)
        assert done.returncode == 0, done.stderr
        hashes.append((tmp_path / name / "checkpoints" / "step-00000002" / "model.safetensors").read_bytes())
    assert hashes[0] == hashes[1]
