"""The command line as a user sees it: real processes, their exit codes and output."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from psnode import __version__
from psnode.cli import app, main
from psnode.cli.foreign_flags import FOREIGN
from psnode.config import settings
from psnode.config.schemes import SCHEMES
from psnode.config.train_settings import DEFAULT_SCHEME

Run = Callable[..., Any]  # the fixture `psnode`, which returns code, out and err

COMMANDS = {"train", "launch", "evaluate", "export", "bench", "codecs", "doctor", "plan", "report", "runs", "simulate", "tune"}
# flags known to users of ATOMO and ps_pytorch
KNOWN = [
    "--network", "--dataset", "--batch-size", "--test-batch-size", "--eval-batch-size", "--lr", "--momentum", "--lr-shrinkage",
    "--max-steps", "--epochs", "--eval-freq", "--num-aggregate", "--svd-rank", "--quantization-level", "--bucket-size",
    "--train-dir", "--model-dir", "--enable-gpu", "--seed", "--log-interval", "--resume", "--code", "--comm-type",
]  # fmt: skip


def refused(done: Any, *parts: str) -> None:
    """Check for exit code 2, one line on standard error that contains `parts`, and no other output."""
    assert done.code == 2, done
    assert re.fullmatch(r"psnode: error: [^\n]+\n", done.err), done
    assert done.out == ""
    for part in parts:
        assert part in done.err, done


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs commands like the fixture `psnode`, but in this process, so that no imports are repeated."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*args: str | Path, env: Mapping[str, str] | None = None) -> Any:
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        code = main([str(arg) for arg in args])
        out, err = capfd.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


def test_help_names_every_command(psnode: Run) -> None:
    done = psnode("--help")
    assert done.code == 0
    assert set(re.findall(r"^  ([a-z]+) {2,}", done.out, re.M)) == COMMANDS


def test_version(psnode: Run) -> None:
    assert re.fullmatch(rf"psnode {re.escape(__version__)} \([0-9a-f]{{8}}\)\n", psnode("--version").out)


def test_no_command_shows_the_help_and_is_a_usage_error(psnode: Run) -> None:
    done = psnode()
    assert (done.code, done.out) == (2, "")
    assert "Commands:" in done.err


def test_train_help_explains_every_setting_and_every_known_flag(psnode: Run) -> None:
    text = psnode("train", "--help").out
    for flag in [*KNOWN, *(setting.flag for setting in settings().values())]:
        assert re.search(rf"(^|[ ,]){flag}\b", text, re.M), flag


def test_a_flag_is_made_of_every_setting_and_of_nothing_else() -> None:
    flags = {parameter.name for parameter in app.commands["train"].params}
    assert flags == {*settings(), "file", "print_config", "dry_run"}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["trian"], ["unknown command 'trian'", ", ".join(sorted(COMMANDS)), "did you mean train"]),
        (["train", "--lrr", "1"], ["unknown option --lrr", "did you mean --lr"]),
        (["train", "--device", "cuda"], ["unknown option --device: here it is --enable-gpu (psnode train --help"]),
        (["train", "--max_grad_norm", "1"], ["unknown option --max_grad_norm: here it is --clip-grad-norm"]),
        (["launch", "-n", "2", "--", "train", "--gradient-accumulation-steps", "4"], ["here it is --batches-per-step"]),
        (["train", "--local-rank", "0"], ["unknown option --local-rank: nothing to set: mpirun tells every rank its place"]),
        (["train", "--lr"], ["--lr", "requires an argument"]),
        (["train", "--lr", "fast"], ["--lr must be a number above 0, not 'fast'", "leave it out"]),
        (["train", "--lr", "0"], ["--lr must be a number above 0"]),
        (["train", "--optimizer", "adma"], ["one of sgd, adam, adamw", "did you mean adam"]),
        (["train", "--batch-size", "1.5"], ["--batch-size must be a whole number of at least 1, not '1.5'"]),
        (["train", "--nesterov=1"], ["--nesterov", "does not take a value"]),
        (["train", "something"], ["something"]),
        (["train", "--codec", "qsdg"], ["unknown codec 'qsdg'", "did you mean qsgd", "identity"]),
        (["train", "--codec", "qsgd:levls=3"], ["'levls'", "did you mean levels"]),
        (["train", "--codec", "qsgd:levels=0"], ["levels", "0"]),
        (["train", "--code", "atoom"], ["--scheme must be one of dense,", "did you mean atomo"]),
        (["train", "--feedback", "eff"], ["feedback 'eff'", "did you mean ef"]),
        (["train", "--downlink", "tpok"], ["tpok", "did you mean topk"]),
        (["train", "--consistency", "spp"], ["--consistency must be one of bsp, kofn, ssp, asp", "did you mean ssp"]),
        (["train", "--local", "2", "--consistency", "kofn"], ["--consistency kofn needs --num-aggregate"]),
        (["train", "--local", "2", "--num-aggregate", "1"], ["--num-aggregate must be the number of workers, 2"]),
        (["train", "--local", "2", "--network", "LeNett"], ["LeNett", "lenet", "vgg"]),
        (["train", "--local", "2", "--dataset", "digit"], ["digit", "digits", "imagefolder"]),
        (["train", "--local", "2", "--dataset", "MNIST"], ["--data-dir"]),
        (["train", "--local", "2", "--dataset", "MNIST", "--data-dir", "/nowhere/at/all"], ["/nowhere/at/all"]),
        (["train", "--local", "2", "--network", "VGG11"], ["vgg-11", "32x32", "28x28"]),
        (["train", "--task", "missing.py", "--local", "2"], ["missing.py"]),
        (["train", "--config", "missing.toml"], ["missing.toml cannot be read"]),
        (["train"], ["mpirun -n", "--local"]),
        (["launch", "-n", "0", "--", "train"], ["'-n'"]),
        (["launch", "--", "train"], ["-n", "--workers"]),
        (["launch", "-n", "2", "--", "train", "--lrr", "1"], ["unknown option --lrr", "did you mean --lr"]),
        (["launch", "-n", "2", "train", "--lrr", "1"], ["unknown option --lrr", "did you mean --lr"]),
        (["launch", "-n", "2", "--", "trian"], ["unknown command 'trian'", "did you mean train"]),
        (["launch", "-n", "2", "--", "train", "--local", "2"], ["--local runs all workers in one process"]),
        (["evaluate"], ["--train-dir"]),
        (["evaluate", "--train-dir", "nothing", "--once"], ["nothing holds no run"]),
        (["bench", "nothing"], ["unknown command 'nothing'"]),
    ],
)
def test_bad_usage_is_one_line_with_the_remedy(here: Run, args: list[str], parts: list[str]) -> None:
    refused(here(*args), *parts)


def test_a_process_that_is_refused_says_so_and_ends_with_its_code(psnode: Run) -> None:
    refused(psnode("train", "--lr", "fast"), "--lr must be a number above 0, not 'fast'")


def test_a_bad_variable_is_refused(here: Run) -> None:
    refused(here("train", env={"PSNODE_BATCHSIZE": "1"}), "unknown variable PSNODE_BATCHSIZE", "PSNODE_BATCH_SIZE")


def test_local_under_mpirun_is_refused(here: Run) -> None:
    environment = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}
    refused(here("train", "--local", "2", env=environment), "--local runs all workers in one process")


def test_a_local_run_beside_another_job_is_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        found = python(
            "import sys; from psnode.cli import main; from psnode.records import directory_lock; directory_lock._DYING = 0.2; "
            "print(main(['train', '--local', '1', '--train-dir', sys.argv[1]]), 'torch' in sys.modules)",
            str(tmp_path),
        )
    assert found.split() == ["2", "False"]


def test_rank_0_speaks_first_and_the_others_for_themselves_if_nobody_ended_them(psnode: Run) -> None:
    job = {"OMPI_COMM_WORLD_SIZE": "3"}
    assert "--lrr" in psnode("train", "--lrr", "1", env={**job, "OMPI_COMM_WORLD_RANK": "0"}).err
    other = psnode("train", "--lrr", "1", env={**job, "OMPI_COMM_WORLD_RANK": "2"})
    assert (other.code, other.out) == (2, "")
    assert other.err.startswith("psnode: error: rank 2: ")


def test_a_refused_run_leaves_nothing_behind(here: Run, tmp_path: Path) -> None:
    refused(here("train", "--local", "2", "--network", "VGG11", "--train-dir", "run"))
    assert not (tmp_path / "run").exists()


def test_what_a_task_raises_is_shown_with_file_and_line_without_debug(here: Run, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(
        "from psnode.tasks.classification import Classification\n"
        "class Mine(Classification):\n"
        "    def __init__(self, options=None):\n"
        "        super().__init__('LeNet', 'digits', seed=1)\n"
        "    def model(self):\n"
        "        return 1 / 0\n"
    )
    done = here("train", "--local", "2", "--task", "task.py:Mine")
    assert done.code == 1
    assert 'task.py", line 6, in model' in done.err
    assert "ZeroDivisionError: division by zero (task.py:6 in model)" in done.err.splitlines()[-1]


def test_debug_shows_the_traceback(here: Run) -> None:
    done = here("train", "--local", "2", "--network", "LeNett", "--debug")
    assert done.code == 2
    assert "Traceback (most recent call last)" in done.err
    assert done.err.splitlines()[-1].startswith("psnode: error: ")


def test_comm_type_is_accepted_and_explained(here: Run) -> None:
    done = here("train", "--comm-type", "Bcast", "--local", "1", "--max-steps", "1", "--train-dir", "run")
    assert done.code == 0, done
    assert "--comm-type Bcast changes nothing" in done.err


def test_codecs_as_json_holds_codecs_with_traits_and_schemes(psnode: Run) -> None:
    from psnode.codecs import available, get_codec
    from psnode.config.schemes import SCHEMES

    done = psnode("codecs", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert [entry["id"] for entry in found["codecs"]] == available()
    assert [entry["name"] for entry in found["schemes"]] == list(SCHEMES)
    for entry in found["codecs"]:
        codec = get_codec(entry["default"])
        assert all(entry[trait] == getattr(codec, trait) for trait in ("unbiased", "lossless", "linear", "shaped"))
        assert entry["summary"]
    by_id = {entry["id"]: entry for entry in found["codecs"]}
    assert by_id["identity"]["lossless"]
    assert 32 <= by_id["identity"]["max_bits"] < 32.01
    assert by_id["qsgd"]["unbiased"]
    assert by_id["qsgd"]["max_bits"] == pytest.approx(5 + 32 / 512, abs=0.01)


def test_codecs_as_tables(here: Run) -> None:
    from psnode.codecs import available
    from psnode.config.schemes import SCHEMES

    done = here("codecs", env={"COLUMNS": "80"})
    assert done.code == 0
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    first = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert [name for name in first if name in available()][: len(available())] == available()
    assert first[-1 - len(SCHEMES) : -1] == list(SCHEMES)
    assert "…" not in done.out


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("qsgd", ["codec qsgd", "Alistarh", "levels=15, bucket=512", "unbiased", "5.06", "scheme qsgd", "that of dense SGD"]),
        ("signsgd", ["scheme signsgd", "majority", "0.0005 unless --lr is given; the rule: "]),
        ("ATOMO", ["scheme atomo", "NeurIPS 2018", "svd", "learning rate"]),
        ("adacomp", ["codec adacomp", "AAAI 2018", "|H|", "shaped sparse adaptive", "scheme adacomp", "feedback"]),
        (
            "ecq",
            ["feedback ecq", "ICML 2018", "h = beta h + (g - q)", "alpha=0.2, beta=0.9", "error", "scheme ecq"],
        ),
        ("ef:decay=0.5", ["feedback ef", "decay=0.5", "residual", "topk, "]),
        ("topk:ratio=0.5", ["ratio=0.5", "biased sparse", "dgc"]),
    ],
)
def test_one_codec_or_scheme_in_full(here: Run, name: str, parts: list[str]) -> None:
    done = here("codecs", name)
    assert done.code == 0, done
    for part in parts:
        assert part in done.out, (part, done.out)


def test_an_unknown_codec_or_scheme_is_no_listing(here: Run) -> None:
    refused(here("codecs", "qsgdd"), "there is no codec or scheme 'qsgdd'; did you mean qsgd?")
    refused(here("codecs", "qsgd", "--json"), "--json lists everything")


def test_a_file_alone_is_answered_with_its_codecs(here: Run, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "examples" / "codec.py").read_text()
    (tmp_path / "own.py").write_text(text.replace('"""`octaves`: how many', '"""Powers of two. `octaves`: how many', 1))
    done = here("codecs", "own.py")
    assert (done.code, done.err) == (0, "")
    assert "own.py:Logarithmic  A codec that stores every value in one byte." in done.out
    assert "own.py:Codec" not in done.out
    assert here("codecs", "own.py:Logarithmic").code == 0
    (tmp_path / "empty.py").write_text("import math\n")
    refused(here("codecs", "empty.py"), "empty.py defines no codec")
    refused(here("codecs", "nowhere.py"), "nowhere.py does not exist")
    refused(here("bench", "codecs", "--codec", "own.py"), "names no class: psnode codecs own.py lists those of the file")


def test_answers_to_foreign_names_name_what_is_there(here: Run) -> None:
    own = {flag for parameter in app.commands["train"].params for flag in (*parameter.opts, *parameter.secondary_opts)}
    for name, told in FOREIGN.items():
        assert name not in own, name
        assert set(re.findall(r"--[a-z][a-z-]+", told)) <= own | {"--hostfile"}, (name, told)  # --hostfile belongs to launch


def test_a_shell_completes_the_choices_of_a_setting(psnode: Run) -> None:
    words = {"_PSNODE_COMPLETE": "bash_complete", "COMP_WORDS": "psnode train --optimizer a", "COMP_CWORD": "3"}
    found = psnode(env=words).out.split()
    assert {"plain,adam", "plain,adamw"} <= set(found)
    assert all(line.startswith("plain,a") for line in found)


# scipy is left out, since numba imports it where it is installed
HEAVY = ("torch", "mpi4py", "torchvision", "matplotlib", "safetensors", "cupy")


LIGHT = [["--help"], ["train", "--help"], ["codecs", "--json"], ["train", "--lrr", "1"], ["train", "--code", "x"]]


def python(program: str, *args: str) -> str:
    """Run `program`, and return its output."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, env=env, check=True).stdout


@pytest.mark.parametrize("args", LIGHT)
def test_light_commands_import_nothing_heavy(args: list[str]) -> None:
    program = (
        "import sys; from psnode.cli import main; main(sys.argv[1:]); "
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert python(program, *args).splitlines()[-1] == "HEAVY []"


def test_importing_psnode_imports_nothing_of_it() -> None:
    heavy = ("psnode.", "numpy", "torch", "click")
    program = f"import sys, psnode; print([name for name in sys.modules if name.startswith({heavy!r})])"
    assert python(program).strip() == "[]"


def test_the_packages_names_are_what_they_say() -> None:
    import psnode
    from psnode.config import Config
    from psnode.task import Task

    assert psnode.Config is Config
    assert psnode.Task is Task
    assert callable(psnode.run)
    with pytest.raises(AttributeError, match="nothing"):
        psnode.nothing  # noqa: B018


def test_every_command_explains_itself() -> None:
    for name, command in app.commands.items():
        assert isinstance(command, click.Command)
        assert command.help, name
        assert command.short_help, name


@pytest.mark.long
def test_doctor_finds_what_is_here_and_misses_what_is_not(psnode: Run, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    done = psnode("doctor", "--json", "--data-dir", tmp_path / "none")
    found = {entry["what"]: entry for entry in json.loads(done.out)}
    assert done.code == 2
    assert found["data"]["state"] == "missing"
    assert found["data"]["remedy"]
    assert found["Python"]["state"] == "ok"
    for name in ("MPI", "MPI threads", "mpirun", "torch", "kernel cache", "numpy", "codecs", "cores", "shared memory"):
        assert found[name]["state"] == "ok", found[name]
    assert all(entry["remedy"] for entry in found.values() if entry["state"] != "ok")


@pytest.mark.long
def test_doctor_survives_a_broken_mpi_and_a_broken_codec(psnode: Run, tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "mpi4py"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("import os\nos.abort()\n")
    break_it = "from psnode.codecs import table\ntable._STAGES['polar'] = table.CodecEntry(21, 'polar:Nothing')\n"
    (broken.parent / "sitecustomize.py").write_text(break_it)
    root = Path(__file__).parents[2]
    done = psnode("doctor", "--json", env={"PYTHONPATH": f"{broken.parent}{os.pathsep}{root}"})
    found = {entry["what"]: entry for entry in json.loads(done.out)}
    assert done.code == 2
    assert found["MPI"]["state"] == "missing"
    assert "pip install" in found["MPI"]["remedy"]
    assert found["codecs"]["state"] == "missing"
    assert found["codecs"]["detail"].startswith(f"{SCHEMES[DEFAULT_SCHEME].codec}: AttributeError")
    assert "pip install -c constraints.txt" in found["codecs"]["remedy"]


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["train", "--clip-grad-norm"], "psnode train"),
        (["launch", "-n", "2", "--", "train", "--clip-grad-norm"], "psnode train"),
        (["launch", "-n"], "psnode launch"),
        (["bench", "codecs", "--size"], "psnode bench codecs"),
        (["doctor", "--hosts"], "psnode doctor"),
    ],
)
def test_an_option_without_its_value_names_the_help_of_its_command(here: Run, words: list[str], path: str) -> None:
    refused(here(*words), f"'{words[-1]}' requires an argument: see {path} --help")
