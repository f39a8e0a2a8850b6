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

from tests.forking import FORKING, ROOT, Forking

FORKED = "import sys; print('numba' in sys.modules)"  # a new interpreter has not imported Numba
PLACE = "import os, sys; print(sys.argv, os.getcwd(), os.environ['FORKING_TEST'], sys.stdin.read(), __name__)"
OTHER = {"OMP_NUM_THREADS": "2", "NUMBA_DISABLE_JIT": "1", "PYTHONHASHSEED": "2"}  # what an import reads
OTHER["LC_ALL"] = "C" if os.environ.get("LC_ALL") != "C" else "C.UTF-8"


def environment() -> dict[str, str]:
    """Return the environment of these tests, under which a fork does not differ from a new interpreter."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}


def run(*words: str | Path, python: str = "", folder: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `python words`, by default as a fork."""
    line = [python or FORKING.python(), *map(str, words)]
    return subprocess.run(
        line, capture_output=True, text=True, env={**environment(), **more}, input="in", check=False, timeout=600, cwd=folder
    )


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
        "def f(x: int): pass\nprint(f.__annotations__)",
        "import sys; main = sys.modules['__main__']; print(main.__spec__, main.__package__, main.__doc__)",
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
    assert run("-c", "raise KeyboardInterrupt").returncode == -signal.SIGINT


def test_files_and_modules_are_main(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 5")
    program = tmp_path / "program.py"
    program.write_text(
        "import beside, sys\nprint(beside.value, sys.argv[1:], __name__, __file__ == sys.argv[0], 'numba' in sys.modules)"
    )
    assert run(program, "x").stdout == "5 ['x'] __main__ True True\n"
    program.write_text("import sys\nprint('numba' in sys.modules)")
    assert run("-m", "program", folder=tmp_path).stdout == "True\n"
    assert "quantile" in run("-m", "timeit", "-n", "1", "-s", "import statistics", "print(statistics.quantiles.__name__)").stdout


def test_it_is_a_fork_unless_it_would_differ(tmp_path: Path) -> None:
    assert run("-c", FORKED).stdout == "True\n"
    for variable, value in OTHER.items():
        assert run("-c", FORKED, **{variable: value}).stdout == "False\n", variable
    assert run("-c", FORKED, PYTHONPATH=str(tmp_path)).stdout == "False\n"  # the path may hold another psnode
    assert run("-E", "-c", FORKED).stdout == "False\n"
    line = f'umask 0123; exec {FORKING.python()} -c "{FORKED}"'
    assert subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, env=environment()).stdout == "False\n"


def test_limits_are_taken_over() -> None:
    program = f"{FORKED}; import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    line = f"ulimit -n 321; exec {FORKING.python()} -c '{program.replace(chr(39), chr(34))}'"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout == "True\n(321, 321)\n"


def started(program: str) -> tuple[subprocess.Popen[str], int]:
    """Start a fork; return its client and the fork's own process id."""
    client = subprocess.Popen([FORKING.python(), "-c", f"import os; print(os.getpid(), flush=True); {program}"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment())  # fmt: skip
    assert client.stdout is not None
    return client, int(client.stdout.readline())


def ended(pid: int) -> bool:
    """Wait up to 600 s for a process to disappear, and return True if it has."""
    end = time.monotonic() + 600
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.01)
    return not Path(f"/proc/{pid}").exists()


def test_signals_reach_the_fork() -> None:
    client, fork = started("import signal; signal.signal(10, lambda *_: os._exit(5)); print(1, flush=True); signal.pause()")
    assert client.stdout is not None and fork != client.pid
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


def test_what_a_fork_has_started_is_killed_with_it() -> None:
    client, _ = started(
        "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid, flush=True); import signal; signal.pause()"
    )
    assert client.stdout is not None
    child = int(client.stdout.readline())
    client.kill()
    client.wait(600)
    client.stdout.close()
    assert ended(child)


def test_the_output_of_one_ends_with_it_while_another_lives() -> None:
    first, _ = started("import signal; signal.pause()")
    second, _ = started("pass")
    assert first.stdout is not None and second.stdout is not None
    assert second.stdout.read() == ""  # at the end of the file
    assert (second.wait(600), first.poll()) == (0, None)
    first.kill()
    first.wait(600)
    first.stdout.close()
    second.stdout.close()


@pytest.mark.long
def test_forks_end_with_their_server() -> None:
    other = Forking()
    client = subprocess.Popen([other.python(), "-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()"],
                              stdout=subprocess.PIPE, text=True, env=environment())  # fmt: skip
    assert client.stdout is not None
    fork = int(client.stdout.readline())
    other.close()
    assert ended(fork)
    assert client.wait(600) == -signal.SIGKILL
    client.stdout.close()


@pytest.mark.long
def test_a_run_is_that_of_an_interpreter(tmp_path: Path) -> None:
    flags = ["--local", "1", "--max-steps", "2", "--threads", "1", "--no-tensorboard", "--scheme", "dense"]
    weights = []
    for name, python in (("forked", ""), ("own", sys.executable)):
        done = run("-m", "psnode", "train", *flags, "--train-dir", tmp_path / name, python=python)
        assert done.returncode == 0, done.stderr
        weights.append((tmp_path / name / "checkpoints" / "step-00000002" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
