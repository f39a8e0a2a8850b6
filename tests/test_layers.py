"""The layers of the package, read from its source: permitted imports, and the imports made when a module is loaded."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "psnode"
HOMES = {"psnode": PACKAGE, "psnode_ec2": ROOT / "tools" / "ec2"}

# from bottom to top: a module may import from its own line and from lines above it in this list
LAYERS = [
    {"errors"},
    {"codecs"},
    {"feedback"},
    {"config"},
    {"plans"},
    {"transport"},
    {"protocol"},
    {"records", "tasks", "task"},
    {"exchange"},
    {"worker", "master", "evaluator"},
    {"jobs", "ddp"},
    {"report"},
    {"bench"},
    {"cli", "__main__"},
]
ROLES = {"worker", "master", "evaluator"}  # on the same layer, but they must not import each other

# slow packages, and the modules or packages (with all below them) that may import them at the top; others import them inside
# functions
HEAVY: dict[str, set[str]] = {
    "torch": {"tasks", "exchange", "worker", "master", "evaluator", "ddp", "codecs/device"},
    "torchvision": set(),
    "mpi4py": set(),
    "scipy": set(),
    "safetensors": set(),
    "tensorboard": set(),
    "wandb": set(),
    "mlflow": set(),
    "trackio": set(),
    "optuna": set(),
    "matplotlib": set(),
    "cupy": set(),
    "boto3": set(),
    "PIL": set(),
}
# no other module may import mpi4py, not even inside a function
ONLY_HOME = {"mpi4py": {PACKAGE / "transport" / "mpi" / "endpoint.py"}}


class Import(NamedTuple):
    """An import of `module` in the file `path`. `lazy`: inside a function; `typing`: for the type checker only."""

    path: Path
    module: str
    lazy: bool
    typing: bool


def imports_of(path: Path) -> Iterator[Import]:
    yield from _walk(ast.parse(path.read_text()), path, lazy=False, typing=False)


def _walk(node: ast.AST, path: Path, lazy: bool, typing: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inner = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        checked = typing or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(path, alias.name, lazy, typing)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{path}: relative import"
            for alias in child.names:
                full = f"{child.module}.{alias.name}"
                yield Import(path, full if file_of(full) else str(child.module), lazy, typing)
        yield from _walk(child, path, inner, checked)


def file_of(module: str) -> Path | None:
    """Return the file of a module of psnode or of the cluster tool, or None if it does not exist."""
    package, *rest = module.split(".")
    if package not in HOMES:
        return None
    base = HOMES[package].joinpath(*rest)
    return next((file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()), None)


def part_of(path: Path) -> str:
    """Return the part of a file: errors for psnode/errors.py, codecs for files below psnode/codecs/."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_below(path: Path, place: str) -> bool:
    """Return True for the module or package `place` of psnode, and for its contents."""
    return PACKAGE / place in (path.with_suffix(""), *path.parents)


def layer_of(part: str) -> int:
    return next(index for index, parts in enumerate(LAYERS) if part in parts)


SOURCES = sorted(PACKAGE.rglob("*.py"))
IMPORTS = [found for path in SOURCES for found in imports_of(path)]
OWN = [found for found in IMPORTS if found.module.split(".")[0] == "psnode"]


def shown(found: Import) -> str:
    return f"{found.path.relative_to(ROOT)} imports {found.module}"


def test_every_module_has_its_place() -> None:
    placed = set().union(*LAYERS)
    assert sorted({part_of(path) for path in SOURCES} - placed - {"__init__"}) == []


def test_the_package_does_not_know_the_studies() -> None:
    """Check that psnode imports no study, since studies are not part of the wheel."""
    assert [shown(found) for found in IMPORTS if found.module.split(".")[0] == "studies"] == []


def test_imports_point_downward() -> None:
    breaches = []
    for found in OWN:
        target = file_of(found.module)
        assert target is not None, shown(found)
        source_part, target_part = part_of(found.path), part_of(target)
        if "__init__" in (source_part, target_part):  # the package root, which holds the version and names imported on demand
            continue
        if layer_of(target_part) > layer_of(source_part):
            breaches.append(shown(found))
    assert breaches == []


def test_the_roles_do_not_know_each_other() -> None:
    crossings = []
    for found in OWN:
        source, target = part_of(found.path), part_of(file_of(found.module) or PACKAGE / "__init__.py")
        if {source, target} <= ROLES and source != target:
            crossings.append(shown(found))
    assert crossings == []


def test_the_kind_of_consistency_is_asked_for_in_one_place() -> None:
    """Check that only the settings and `rule_of`, which makes the rule, read the kind of consistency. All other code asks
    the rule.
    """
    readers = {
        str(path.relative_to(PACKAGE))
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "consistency" and part_of(path) != "config"
    }
    assert readers == {"exchange/shard/consistency.py"}


MAKERS = {"shard.Shard", "served_model.ServedModel", "distributed_shard.DistributedShard"}


def test_the_master_reaches_the_data_plane_through_the_shard() -> None:
    """Check that the master imports from the data plane only routes, the rule, the shard's handle and events with their
    types, flow control, and facts known before the shard exists (the machine and its memory, predictions, kernels). Only the
    files that make a shard import its class.
    """
    shard = {
        "route",
        "topologies",
        "refusals",
        "handle",
        "consistency",
        "shard_events",
        "flow_control",
        "machine",
        "expected",
        "footprint",
    }
    names = {"exchange.malloc", "median_clipping.Clipped", "compilation.prepare", "flat_model.describe"}
    reached = imported_by_the_master()
    makers = {name for name in reached if name in MAKERS}
    assert {name for name in reached if name.partition(".")[0] not in shard} - makers == names
    for name in makers:  # all other modules know only the protocol
        assert reached[name] <= {"__init__.py", "trial_run.py"}, name


def imported_by_the_master() -> dict[str, set[str]]:
    """Return the names of the data plane as MODULE.NAME, with the files of the master that import them."""
    found: dict[str, set[str]] = {}
    for path in (PACKAGE / "master").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("psnode.exchange"):
                for alias in node.names:
                    found.setdefault(f"{(node.module or '').rpartition('.')[2]}.{alias.name}", set()).add(path.name)
    return found


def test_llvm_text_stands_in_one_package() -> None:
    """Check that only psnode.codecs.kernels.llvm contains LLVM instructions. Other modules call its functions, each of which
    has an equivalent in NumPy.
    """
    words = re.compile(r"\b(llvmlite|intrinsic|lower_builtin|type_callable)\b")
    users = {str(path.parent.relative_to(PACKAGE)) for path in SOURCES if any(words.search(line) for line in code_of(path))}
    assert users == {"codecs/kernels/llvm"}


TOPOLOGIES = {"star", "mesh"}
AMBIGUOUS = {"gather"}  # also a verb: only texts are names of topologies


def test_one_package_knows_topologies_by_name() -> None:
    """Check that among the packages that make up a job, only exchange/routes and the settings name topologies. The
    measurements are exempt, since they compare jobs.
    """
    readers = {
        str(path.relative_to(PACKAGE))
        for path in SOURCES
        if part_of(path) in {"exchange", "master", "worker", "protocol", "transport", "config", "plans", "records", "jobs"}
        for line in code_of(path)
        if TOPOLOGIES & set(re.split(r"[\W_]+", line.lower())) or AMBIGUOUS & set(re.findall(r'"(\w+)"', line))
    }
    assert readers == {"config/train_settings.py", "exchange/routes/topologies.py", "exchange/routes/refusals.py"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Check psnode and tools/ec2 for cycles of imports at import time, inside functions or for the type checker only.

    The roots psnode and psnode_ec2 do not count.
    """
    edges = {path: set[Path]() for home in HOMES.values() for path in sorted(home.rglob("*.py"))}
    for path, targets in edges.items():
        for found in imports_of(path):
            if file := file_of(found.module):
                targets.add(file)
    for root in (home / "__init__.py" for home in HOMES.values()):
        del edges[root]
    assert [[str(path.relative_to(ROOT)) for path in circle] for circle in circles(edges)] == []


def circles(edges: dict[Path, set[Path]]) -> list[list[Path]]:
    """Return the strongly connected components with several nodes, or with one node that has an edge to itself; each sorted."""
    reach = {start: _reached(start, edges) for start in edges}
    found = {tuple(sorted(other for other in reach[start] if start in reach[other])) for start in edges if start in reach[start]}
    return [list(circle) for circle in sorted(found)]


def _reached(start: Path, edges: dict[Path, set[Path]]) -> set[Path]:
    """Return the nodes that are reached from `start` over at least one edge."""
    reached: set[Path] = set()
    ahead = [start]
    while ahead:
        new = {target for target in edges[ahead.pop()] if target in edges} - reached
        reached |= new
        ahead.extend(new)
    return reached


def test_the_search_would_find_a_circle() -> None:
    a, b, c, d, e = (Path(name) for name in "abcde")
    assert circles({a: {b}, b: {c, d}, c: {a}, d: {e}, e: {e}}) == [[a, b, c], [e]]


def test_imports_inside_functions_count(tmp_path: Path) -> None:
    """Check that imports inside functions are found and marked as lazy, and that those under TYPE_CHECKING are marked: no
    interpreter runs them.
    """
    path = tmp_path / "module.py"
    path.write_text("if TYPE_CHECKING:\n    import psnode.task\ndef f():\n    from psnode.codecs import base\n")
    assert [found[1:] for found in imports_of(path)] == [("psnode.task", False, True), ("psnode.codecs.base", True, False)]


def test_kernels_are_the_bottom_of_the_codecs() -> None:
    """Check that kernels know only arrays, random words and errors; codecs, stages and sources lie above them."""
    below = {"psnode.codecs.arrays", "psnode.codecs.rng", "psnode.errors"}
    kernels = [found for found in OWN if found.path.parent == PACKAGE / "codecs" / "kernels"]
    assert [shown(found) for found in kernels if found.module not in below and ".kernels." not in found.module] == []


DEVICE = PACKAGE / "codecs" / "device"


def test_no_codec_knows_devices() -> None:
    """Check that no codec imports psnode.codecs.device, which imports torch and CuPy and would delay encoding on a processor."""
    codecs = [found for found in OWN if part_of(found.path) == "codecs" and DEVICE not in found.path.parents]
    assert [shown(found) for found in codecs if found.module.startswith("psnode.codecs.device")] == []


def test_devices_are_above_codecs_alone() -> None:
    """Check that the device forms know no segment, no feedback rule and no master."""
    device = [found for found in OWN if DEVICE in found.path.parents]
    assert [shown(found) for found in device if not found.module.startswith(("psnode.codecs", "psnode.errors"))] == []


def test_formulas_are_below_the_codecs_that_run_by_them() -> None:
    """Check that psnode.codecs.rows knows the parts that codecs share, but no codec (docs/decisions/rows.md)."""
    rows, shared = (
        PACKAGE / "codecs" / "rows",
        {"arrays", "base", "kernels", "rng", "rows", "sinks", "sources", "stages", "table"},
    )
    known = [found for found in OWN if rows in found.path.parents and found.module.startswith("psnode.codecs.")]
    assert [shown(found) for found in known if found.module.split(".")[2] not in shared] == []


def test_formulas_are_loaded_where_they_are_asked_for() -> None:
    """Check that formulas are imported at the top only by codecs derived from Generated, directly or through a base, and by
    psnode.codecs.device.cupy; other modules import them only inside functions.
    """
    rows, exchange = PACKAGE / "codecs" / "rows", PACKAGE / "exchange"
    device = {*DEVICE.rglob("*.py"), *(exchange / "device").iterdir(), exchange / "update" / "device_steps.py"}
    bases = "(Generated, ", "(HalfPrecision)", "(Binary)"
    generated = {path for path in (PACKAGE / "codecs").glob("*.py") if any(base in path.read_text() for base in bases)}
    found = [each for each in OWN if each.module.startswith("psnode.codecs.rows") and rows not in each.path.parents]
    users = [each for each in found if each.path not in generated and DEVICE / "cupy" not in each.path.parents]
    assert [shown(each) for each in users if not each.lazy and not each.typing] == []
    assert {part_of(each.path) for each in users if each.path not in device} <= {"cli", "bench"}


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_are_imported_where_they_are_used(package: str) -> None:
    early = [
        shown(found)
        for found in IMPORTS
        if found.module.split(".")[0] == package
        and not found.lazy
        and not found.typing
        and not any(is_below(found.path, place) for place in HEAVY[package])
    ]
    assert early == []


@pytest.mark.parametrize("package", ONLY_HOME)
def test_packages_with_one_home(package: str) -> None:
    homes = {found.path for found in IMPORTS if found.module.split(".")[0] == package}
    assert homes == ONLY_HOME[package]


def test_the_cluster_tool_imports_three_leaves_of_psnode() -> None:
    """Check that the cluster tool imports only the declaration of settings (docs/decisions/settings.md), the standard
    streams, and the JSON writer.
    """
    found = {found.module for path in (ROOT / "tools").rglob("*.py") for found in imports_of(path)}
    assert {module for module in found if module.split(".")[0] == "psnode"} == {
        "psnode.config.declaration",
        "psnode.config.plain_json",
        "psnode.config.streams",
    }
    for leaf, more in (("declaration.py", set()), ("streams.py", {"psnode.config.plain_text"})):
        assert {found.module for found in OWN if found.path == PACKAGE / "config" / leaf} == {"psnode.errors"} | more


def test_the_cluster_tool_loads_little_of_psnode() -> None:
    program = "import psnode_ec2.cli, sys; print(*sorted(name for name in sys.modules if name.split('.')[0] == 'psnode'))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = [
        "psnode",
        "psnode.config",
        "psnode.config.declaration",
        "psnode.config.names",
        "psnode.config.plain_json",
        "psnode.config.plain_text",
        "psnode.config.streams",
        "psnode.config.train_settings",
        "psnode.errors",
    ]
    assert done.stdout.split() == loaded


def test_the_library_logs_and_prints_nothing_on_standard_error() -> None:
    """Check all modules except the command line, the measurements, the handler that shows the log, and the keeper of the
    streams.
    """
    may = {
        PACKAGE / "config" / "logs.py",
        PACKAGE / "config" / "streams.py",
        *(PACKAGE / "cli").rglob("*.py"),
        *(PACKAGE / "bench").rglob("*.py"),
    }
    places = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(set(SOURCES) - may)
        for number, line in enumerate(code_of(path), 1)
        if re.search(r"sys\.stderr[,)]|traceback\.print_|sys\.stderr\.write|err=True", line)
    ]
    assert places == []


# functions that would execute text from a peer or a file, beyond those that ruff.toml forbids; numpy.load is safe by default, so
# only the name of its flag is forbidden
FORBIDDEN = {
    "allow_pickle": r"allow_pickle\s*=\s*True",
    "MPI's lower case, which pickles": r"\b(comm|world|COMM_WORLD)\."
    r"(i?send|i?recv|sendrecv|bcast|(all)?gather|scatter|(all)?reduce)\(",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_executes_what_a_peer_sends(what: str) -> None:
    places = []
    for path in [*SOURCES, *(path for name in ("tools", "examples", "studies") for path in (ROOT / name).rglob("*.py"))]:
        for number, line in enumerate(code_of(path), 1):
            if re.search(FORBIDDEN[what], line):
                places.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert places == []


def code_of(path: Path) -> list[str]:
    """Return the lines of a file without its docstrings and comments."""
    tree = ast.parse(path.read_text())
    lines = path.read_text().splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for index in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[index] = ""
    return [re.sub(r"(^|\s)#.*", "", line) for line in lines]


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("allow_pickle", "x = np.load(path, allow_pickle=True)"),
        ("MPI's lower case, which pickles", "comm.send(thing, dest=1)"),
    ],
)
def test_the_search_would_find(what: str, line: str) -> None:
    assert re.search(FORBIDDEN[what], line)


@pytest.mark.parametrize("line", ["comm.Isend(buffer)", "np.load(path, allow_pickle=False)"])
def test_the_search_leaves_alone(line: str) -> None:
    assert not any(re.search(pattern, line) for pattern in FORBIDDEN.values())
