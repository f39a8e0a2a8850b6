"""Kernels are ready before the first step: all kernels that a run needs are compiled once, and a message reports the
compilation.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.exchange import compilation
from psnode.exchange.compilation import _jobs
from psnode.exchange.kernel_pieces import PART, Piece, pieces_of, run_piece
from psnode.master.recorder import StepRecorder
from psnode.plans.coding import Coding
from psnode.plans.groups import Tensor
from psnode.plans.rule import plan_of

ROOT = Path(__file__).resolve().parents[2]

# prepares a run, takes its steps, and prints the specialisations that were loaded or compiled only during these steps
PROGRAM = """
import json, sys
from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.exchange.compilation import prepare
from psnode.exchange.flat_model import describe
from psnode.jobs.job import run
from psnode.plans.coding import Coding
from psnode.plans.rule import plan_of
from psnode.tasks.loading import make_task

def there():
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("psnode")]
    members = [member for module in modules for member in vars(module).values()]
    kernels = [member for member in members if hasattr(member, "overloads") and hasattr(member, "py_func")]
    return {f"{kernel.py_func.__name__}{types}" for kernel in kernels for types in kernel.overloads}

fields = json.loads(sys.argv[1])
config = Config(local=2, max_steps=3, log_interval=1, quiet=True, tensorboard=False, threads=1, **fields)
scheme = resolve(config)
prepare(Coding(plan_of(describe(make_task(config).model()), scheme, config), scheme), config)
before = there()
assert run(config) == 0
print(json.dumps(sorted(there() - before)))
"""


def python(program: str, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, env=env, check=False)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "fields",
    [
        {"scheme": "atomo"},
        {"scheme": "dgc", "weight_decay": 0.01},
        {"scheme": "qsgd", "downlink": "dense", "clip_grad_norm": 1.0, "nesterov": True},
        {"scheme": "dense", "optimizer": "adamw"},
        {"optimizer": "adamw"},
        {"scheme": "minmax", "downlink": "dense"},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_no_step_needs_a_kernel_that_was_not_prepared(fields: dict[str, Any], tmp_path: Path) -> None:
    done = python(PROGRAM, json.dumps({**fields, "train_dir": str(tmp_path)}))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_a_process_that_compiles_imports_neither_torch_nor_mpi() -> None:
    done = python("import sys; import psnode.exchange.compilation; print(sorted({'torch', 'mpi4py'} & set(sys.modules)))")
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.long
def test_a_cold_cache_is_filled_once_and_told(tmp_path: Path) -> None:
    """Check that a first run reports the compilation, and a second run does not. The scheme is the cheapest: its few kernels
    take a second or two.
    """
    program = "from psnode.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    told = []
    for name in ("first", "second"):
        args = ["--local", "1", "--scheme", "dense", "--max-steps", "1", "--no-tensorboard", "--train-dir", str(tmp_path / name)]
        done = python(program, "train", *args, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr
        told.append([line for line in done.stderr.splitlines() if "compil" in line])
    assert told[0][0].startswith("psnode: compiling kernels, once on this machine, in ")
    assert re.fullmatch(r"psnode: compiled \d+ kernels in [\d.]+ s", told[0][-1])
    assert told[1] == []


def pieces(scheme: str, *shapes: tuple[int, ...]) -> list[Piece]:
    config = Config(scheme=scheme, lr=0.1)
    found = resolve(config)
    tensors = [Tensor(f"t{number}", shape) for number, shape in enumerate(shapes or [(64, 128), (8,)])]
    return pieces_of(Coding(plan_of(tensors, found, config), found), config)


@pytest.mark.parametrize("scheme", ["dense", "atomo", "dgc", "topk", "efsignsgd", "polar-2bit"])
def test_pieces_survive_the_way_to_a_child_and_can_be_run_there(scheme: str) -> None:
    for piece in pieces(scheme):
        copy = Piece.parse(json.loads(json.dumps(piece)))
        assert copy == piece
        run_piece(copy)


def test_a_segment_that_ends_inside_a_row_is_among_those_that_are_prepared() -> None:
    """Check that a segment with an incomplete row, which needs its own kernels, is prepared; the smallest and the largest
    segment have no such row.
    """
    coded = [piece for piece in pieces("minmax", (64, 64), (75, 75), (96, 96)) if piece.codec.startswith("minmax")]
    assert coded and all(piece.shapes == ((4096,), (5625,), (9216,)) for piece in coded)


def test_pieces_that_share_stages_are_compiled_one_after_the_other() -> None:
    jobs = _jobs(pieces("atomo"))
    assert [{piece.codec.partition(":")[0] for piece in job} for job in jobs] == [{"svd"}, {"topk"}, {"identity"}]
    assert len(_jobs(pieces("topk"))) == 2
    assert sum(map(len, jobs)) == len(pieces("atomo"))


def test_the_first_step_does_not_take_the_time_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("psnode.master.recorder.time.perf_counter", lambda: now[0])
    recorder = StepRecorder(0, 10, 0)
    now[0] = 140.0  # kernels are compiled
    recorder.begin()
    now[0] = 140.5
    recorder.close(1, 0.1, [], {})
    [record] = recorder.due()
    assert record.seconds.step == 0.5


PARTS = """
import sys
from psnode.codecs import get_codec
from psnode.exchange.kernel_pieces import PART, run_piece
from tests.exchange.test_compilation import pieces

def there():
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("psnode.codecs.")]
    kernels = [member for module in modules for member in vars(module).values() if hasattr(member, "py_func")]
    return {f"{each.py_func.__module__}.{each.py_func.__name__}{types}" for each in kernels for types in each.overloads}

every, loads = pieces("polar-2bit", (300, 400), (64, 128)), []
for part in [piece for piece in every if piece.what == PART]:
    before = there()
    run_piece(part)
    loads.append(there() - before)
print(len(loads), sum("write_blocks" in name for name in loads[2]), sum("read_blocks" in name for name in loads[1]))
before = there()
for piece in every:
    run_piece(piece)
print([name for name in there() - before if "polarcodes" in name or "entropy" in name])
"""


@pytest.mark.long
def test_parts_of_the_polar_code_have_all_its_kernels_and_each_its_own() -> None:
    done = python(PARTS)
    assert done.stdout.splitlines() == ["4 0 0", "[]"], done.stderr


def test_parts_are_compiled_first_and_apart() -> None:
    """Check that the four parts of polar-2bit are the first jobs, each on its own. Gradients and weights have one codec, so
    each part appears once.
    """
    jobs = _jobs(pieces("polar-2bit"))
    assert [[piece.what for piece in job] for job in jobs[:4]] == [[PART]] * 4
    assert [job[0].rule for job in jobs[:4]] == [(0,), (1,), (2,), (3,)]
    assert not any(piece.what == PART for job in jobs[4:] for piece in job)


@pytest.mark.parametrize("cores", [2, 6])
@pytest.mark.parametrize("fails", [False, True])
def test_the_rest_of_a_codec_follows_its_parts(cores: int, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the rest of a codec is compiled after its parts. A part takes a while, so a job that did not wait for the
    parts would overtake them.

    If `fails`, each child process ends at its part and answers nothing. The assertions hold on a machine of any speed.
    """
    taken: list[Piece] = []

    class Child:
        def __init__(self) -> None:
            self.stdin = self.stdout = self

        def write(self, line: str) -> None:
            self.piece = Piece.parse(json.loads(line))
            taken.append(self.piece)
            if self.piece.what == PART:
                time.sleep(0.05 * (1 + self.piece.rule[0]))

        def flush(self) -> None:
            if fails and self.piece.what == PART:
                raise OSError

        def readline(self) -> str:
            return "3\n"

        def kill(self) -> None: ...

        communicate = kill

    monkeypatch.setattr(compilation, "_child", Child)
    monkeypatch.setattr(compilation, "usable_cores", lambda: cores)
    monkeypatch.setattr(compilation, "_nothing_is_kept", lambda: False)
    every = pieces("polar-2bit")
    done = list(compilation._compiled(every))
    assert sorted(piece for piece, _ in done) == sorted(every) and len(taken) == len(every)
    assert {kernels for piece, kernels in done if piece.what == PART} == {0 if fails else 3}
    last = max(place for place, (piece, _) in enumerate(done) if piece.what == PART)
    assert all(piece.what == PART or not piece.codec.startswith("polar") for piece, _ in done[:last])
