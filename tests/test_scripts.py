"""The shell scripts: free of shellcheck's warnings, executable, and stopped by their first failure; some are run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run", ROOT / "psnode" / "bench" / "contest" / "netlab.sh"]
VENV = Path(sys.prefix)


def bash(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program at the root of the project, and end all processes that it started."""
    started = subprocess.Popen(
        ["bash", "-c", program],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
        start_new_session=True,
    )
    try:
        out, err = started.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(program, started.returncode, out, err)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    beside = VENV / "bin" / "shellcheck"
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("no shellcheck: install the extra `dev`")
    done = subprocess.run([shellcheck, "-x", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", [path for path in SCRIPTS if path.name != "venv.sh"], ids=lambda path: path.name)
def test_a_script_is_executable_and_stops_at_the_first_failure(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert "\nset -euo pipefail\n" in script.read_text()


def test_a_python_that_is_too_old_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = bash(". scripts/venv.sh && find_python", PSNODE_PYTHON=str(old))
    assert done.returncode == 2
    assert re.fullmatch(r"bash: error: no Python 3.11 or newer at \S+: install one, or name it in PSNODE_PYTHON\n", done.stderr)


def test_a_python_that_is_new_enough_is_found() -> None:
    done = bash(". scripts/venv.sh && find_python", PSNODE_PYTHON=sys.executable)
    assert (done.returncode, done.stdout.strip()) == (0, sys.executable)


@pytest.mark.parametrize(
    ("state", "extras", "expected"),
    [
        ("$(checkout_state)", "train", 0),
        ("$(checkout_state)", "mpi,train", 0),
        ("$(checkout_state)", "train,dev", 1),
        ("$(checkout_state)", "trai", 1),
        ("$(checkout_state) and older", "train", 1),
    ],
)
def test_an_installation_is_repeated_only_when_something_changed(tmp_path: Path, state: str, extras: str, expected: int) -> None:
    program = f'. scripts/venv.sh; printf "%s\\n%s\\n" "{state}" train,mpi > "{tmp_path}/.psnode-installed"'
    assert bash(f'{program}; is_installed "{tmp_path}" "{extras}"').returncode == expected


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.timeout(150)  # 15 s on two idle cores
def test_quickstart_trains_evaluates_and_says_what_it_did(tmp_path: Path) -> None:
    """Check the output of the script itself, run in the environment of the tests with fewer epochs."""
    ready = bash(f'. scripts/venv.sh && is_installed "{VENV}" train,mpi')
    if ready.returncode != 0:
        pytest.skip("this environment was not made by scripts/test.sh: the script would install into it")
    run = tmp_path / "run"
    done = bash(f"scripts/quickstart.sh '{run}' --epochs 2 --eval-freq 30", PSNODE_VENV=str(VENV))
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy, megabytes, dense = re.search(  # type: ignore[union-attr]
        r"test accuracy +([\d.]+) % on 360 digits.*\nsent +([\d.]+) MB, where float32 both ways takes ([\d.]+) MB", done.stdout
    ).groups()
    summary = json.loads((run / "summary.json").read_text())
    evaluations = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert summary["exit_code"] == 0
    assert summary["steps"] == 2 * 22
    assert [entry["step"] for entry in evaluations] == [30, 44]
    assert float(accuracy) == pytest.approx(100 * evaluations[-1]["top1"], abs=0.006)
    assert float(accuracy) > 60
    # 431 080 parameters of LeNet, 2 workers, 4 bytes, 2 directions
    assert float(dense) == pytest.approx(8 * 2 * 431_080 * 44 / 1e6, rel=1e-3)
    assert float(megabytes) == pytest.approx((summary["uplink_bytes"] + summary["downlink_bytes"]) / 1e6, abs=0.06)
    assert str(run) in done.stdout


def test_the_structure_of_a_checkout_is_measured(tmp_path: Path) -> None:
    """Check the measures of a package with a folder inside, its tests, a top-level module, and the cluster tool."""
    for name, content in {
        "psnode/__init__.py": "",
        "psnode/one.py": "def f(a, /, b, *c, d, **e):\n    pass\n",
        "psnode/codecs/__init__.py": "",
        "psnode/codecs/two.py": "class A:\n    def g(self, a, b):\n        pass\n",
        "psnode/codecs/kernels/three.py": "from llvmlite import ir\n",
        "psnode/plan/two.py": "class A:\n    class B:\n        pass\n",
        "tests/codecs/test_two.py": "# a\n# b\n",
        "tests/test_all.py": "# llvmlite\n",
        "tools/ec2/four.py": "@classmethod\ndef h(cls): ...\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "structure.py", tmp_path], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[:6] == [
        ["lines", "product", "tests"], ["(modules)", "2", "1"], ["codecs", "4", "2"], ["ec2", "2", "0"], ["plan", "3", "0"],
        ["all", "11", "3"],
    ]  # fmt: skip
    assert "entries of psnode/: 3\nentries of its packages: 3, most in codecs: 2\n" in done.stdout
    assert "  5  psnode/one.py: f\n  2  psnode/codecs/two.py: g\n  0  tools/ec2/four.py: h\n" in done.stdout
    assert "modules with LLVM instructions: 1\n  psnode/codecs/kernels/three.py\n" in done.stdout
    assert done.stdout.endswith("classes of one name: A\n\nfiles of one name: two.py\n")


@pytest.mark.parametrize(
    ("said", "code", "told"),
    [
        ("ERROR: [Errno 28] No space left on device", 0, "skipped, it could not be installed for lack of network or disk"),
        ("NewConnectionError: Temporary failure in name resolution", 0, "skipped, it could not be installed for lack of network"),
        ("ERROR: Cannot install psnode: ResolutionImpossible", 1, "FAILED, it cannot be installed"),
    ],
)
def test_a_wheel_is_passed_over_for_lack_of_network_or_disk_alone(said: str, code: int, told: str, tmp_path: Path) -> None:
    """Check that the wheel is skipped only for lack of network or disk, with a Python whose environments hold a pip that
    prints a message and fails.
    """
    inner = f"#!/bin/sh\necho '{said}' >&2\nexit 1\n"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nmkdir -p "$3/bin"\ncat >"$3/bin/python" <<"EOF"\n{inner}EOF\nchmod +x "$3/bin/python"\n')
    python.chmod(0o755)
    done = bash(f"scripts/test_wheel.sh {python}", TMPDIR=str(tmp_path))
    assert done.returncode == code, done
    assert told in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["python"]


@pytest.mark.long
def test_golden_bytes_are_compared_away_from_the_sources(tmp_path: Path) -> None:
    """Check that golden bytes can be compared without the sources: the script only collects the tests here, which succeeds
    only if everything that they import has been copied.
    """
    done = bash(f"scripts/golden_bytes.sh {sys.executable} {tmp_path} --collect-only", PYTHONPATH="")
    assert done.returncode == 0, done
    collected = int(done.stdout.splitlines()[-1].split("/")[0].split()[0])
    codecs = {path.stem for path in (tmp_path / "checks/tests/codecs").glob("test_*.py")}
    assert collected >= 20 and len(codecs) > 20
