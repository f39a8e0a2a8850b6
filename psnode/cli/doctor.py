"""The command `psnode doctor`: checks of everything that a run needs, each with a remedy.

Modules that may crash or hang on import (MPI, torch) are checked in separate processes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import click

from psnode.cli import doctor_codecs
from psnode.config.amounts import amount
from psnode.config.cores import usable_cores
from psnode.config.plain_json import to_json
from psnode.config.quotas import quota
from psnode.errors import ConfigurationError, installing
from psnode.jobs.hosts.probes import probe
from psnode.jobs.shared_memory import A_RANK, PLACE, SharedMemory, room

State = Literal["ok", "missing", "optional"]
_MIN_PYTHON = (3, 11)
_BASE = ("numpy", "numba", "click", "rich", "crc32c", "xxhash", "zstandard")
_OPTIONAL = {
    "tensorboard": "train", "torchvision": "train", "cupy-cuda13x": "gpu", "boto3": "ec2", "wandb": "loggers",
    "mlflow-skinny": "loggers", "trackio": "loggers", "optuna": "tune",
    "matplotlib": "bench",
}  # fmt: skip

_MPI = """
import json, mpi4py
from mpi4py import MPI
try:
    MPI.COMM_WORLD.Get_failed().Free()
    ulfm = True
except (MPI.Exception, NotImplementedError, AttributeError):
    ulfm = False
print(json.dumps({"mpi4py": mpi4py.__version__, "library": MPI.Get_library_version().split(",")[0].strip(),
    "threads": MPI.Query_thread(), "serialized": MPI.THREAD_SERIALIZED, "ulfm": ulfm}))
"""
_JOB = """
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0: print('{"ranks": %d}' % MPI.COMM_WORLD.size)
"""
_TORCH = """
import json, torch
devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps({"version": torch.__version__, "devices": devices}), flush=True)
from psnode.tasks.torchvision_ops import import_torchvision
vision = None
try:
    import_torchvision("models")
except Exception as error:
    vision = " ".join(str(error).split())[:200]
print(json.dumps({"version": torch.__version__, "devices": devices, "vision": vision}))
"""
_CACHE = """
import json
from pathlib import Path
from numba import njit
from psnode.codecs.kernels.finite import copy_finite
from psnode.codecs.kernels.jit import __file__ as trusted, open_to_others
try:
    path = njit(cache=True)(copy_finite.py_func).stats.cache_path
    print(json.dumps({"path": path, "open": open_to_others(Path(path), Path(trusted))}))
except RuntimeError:
    print(json.dumps({"path": None}))
"""
_KERNELS = "import json; from psnode.codecs.device.checks import summary; print(json.dumps(summary()))"


_LARGER = f"docker run --shm-size 1g (docs/containers.md), or mount -o remount,size=1g {PLACE}"


@dataclass(frozen=True)
class Finding:
    """A line of the report: the result of one check.

    `state` is "ok", "missing", or "optional" if the missing part is not needed for training.
    """

    what: str
    state: State
    detail: str
    remedy: str = ""


@click.command(short_help="Check this machine, or all hosts of a job.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Also check that this data directory is readable.")
@click.option(
    "--hosts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Check the hosts of this hostfile by ssh instead, the master's first.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds that a host may take to answer; with --hosts.",
)
@click.option(
    "--topology",
    metavar="NAME",
    help="Topology of the job; if workers send to each other in it, also check the links between all hosts.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(data_dir: Path | None, hosts: Path | None, deadline: float, topology: str | None, as_json: bool) -> int:
    """Check Python, MPI, torch, caches and cores, and name missing packages. Exits with 2 if training cannot work here.

    With --hosts, check that ssh logs in without a question, and that versions match those of this machine. Also show cores, free
    memory, clocks, and the link between the master's host and each other host. Exits with 1 if a problem would stop a job.
    """
    if hosts is not None:
        from psnode.cli import doctor_hosts

        return doctor_hosts.examine(hosts, deadline, data_dir, topology=topology, as_json=as_json)
    if topology is not None:
        raise ConfigurationError("--topology is about the links between hosts: give --hosts FILE with it, or leave it out")
    return examine(data_dir, as_json=as_json)


def examine(data_dir: Path | None, *, as_json: bool = False) -> int:
    """Check everything and print the results. Returns 0 if training can work on this machine, otherwise 2."""
    findings = list(_findings(data_dir))
    if as_json:
        print(to_json([asdict(finding) for finding in findings], indent=2))
    else:
        _show(findings)
    return 2 if any(finding.state == "missing" for finding in findings) else 0


def _findings(data_dir: Path | None) -> Iterator[Finding]:
    yield _python()
    yield from (_package(name, "") for name in _BASE)
    cache = _cache()
    yield cache
    yield _codecs(is_kept=cache.state == "ok")
    yield _cores()
    yield _shared_memory(room())
    yield from _mpi()
    yield from _torch()
    yield from (_package(name, extra) for name, extra in _OPTIONAL.items())
    if data_dir is not None:
        yield _data(data_dir)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= _MIN_PYTHON
    return Finding(
        "Python", "ok" if good else "missing", f"{version} at {sys.executable}", "" if good else "install Python 3.11 or newer"
    )


def _package(name: str, extra: str) -> Finding:
    try:
        return Finding(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        remedy = installing(extra) if extra else "pip install . in a clone of psnode"
        return Finding(name, "optional" if extra else "missing", "not installed", remedy)


def _cache() -> Finding:
    found = probe([sys.executable, "-c", _CACHE])
    if "error" in found:
        return Finding("kernel cache", "missing", found["error"], "set NUMBA_CACHE_DIR to a directory that you can write")
    if found["path"] is None:
        problem = "no writable directory for it: every process recompiles its kernels"
        return Finding("kernel cache", "optional", problem, "set NUMBA_CACHE_DIR to a directory that you can write")
    if found["open"]:
        problem = f"others may write into {found['path']}: it is not used, and every process recompiles its kernels"
        return Finding("kernel cache", "optional", problem, "chmod go-w it, or set NUMBA_CACHE_DIR to a directory of your own")
    return Finding("kernel cache", "ok", found["path"])


def _codecs(*, is_kept: bool) -> Finding:
    """Try codecs, and return the finding.

    `is_kept`: True if compiled kernels are cached. If they are not, only the codecs of the default scheme are tried, because
    kernels would be compiled only for this check.
    """
    found = probe([sys.executable, "-c", doctor_codecs.program(every=is_kept)], seconds=doctor_codecs.SECONDS)
    good, detail, remedy = doctor_codecs.verdict(found)
    return Finding("codecs", "ok" if good else "missing", detail, remedy)


def _cores() -> Finding:
    limit, granted = os.environ.get("OMP_NUM_THREADS"), quota()
    detail = f"{usable_cores()} of {os.cpu_count()}"
    detail += f", by a quota of {granted:.3g}" if granted is not None else ""
    return Finding("cores", "ok", detail + (f", OMP_NUM_THREADS={limit}" if limit else ""))


def _shared_memory(found: SharedMemory | None) -> Finding:
    """Return the finding on shared memory. It must suffice for a master and one rank per core."""
    if found is None:
        return Finding("shared memory", "ok", f"no {PLACE}: Open MPI uses another directory")
    ranks = usable_cores() + 1
    detail = f"{amount(found.free)} of {amount(found.size)} free at {PLACE}, {ranks} ranks take {amount(ranks * A_RANK)}"
    if found.holds(ranks):
        return Finding("shared memory", "ok", detail)
    return Finding("shared memory", "optional", f"{detail}: ranks of one host communicate over TCP, which is slower", _LARGER)


def _mpi() -> Iterator[Finding]:
    install = f"{installing('mpi')}, or build mpi4py against the system's MPI"
    found = probe([sys.executable, "-c", _MPI])
    if "error" in found:
        yield Finding("MPI", "missing", found["error"], install)
        return
    yield Finding("MPI", "ok", f"mpi4py {found['mpi4py']}, {found['library']}")
    threads = found["threads"] >= found["serialized"]
    yield Finding(
        "MPI threads",
        "ok" if threads else "missing",
        f"level {found['threads']}",
        "" if threads else "use an MPI with THREAD_SERIALIZED",
    )
    ulfm = found["ulfm"]
    yield Finding(
        "MPI fault tolerance", "ok" if ulfm else "optional", "ULFM" if ulfm else "no ULFM", "" if ulfm else "use Open MPI 5"
    )
    from psnode.jobs.launch import find_mpirun, startable

    try:
        mpirun = find_mpirun()
    except ConfigurationError as error:
        yield Finding("mpirun", "missing", str(error), install)
        return
    job = [
        mpirun,
        "-n",
        "2",
        *(["--map-by", ":OVERSUBSCRIBE"] if "Open MPI" in found["library"] else []),
        *startable([sys.executable, "-c", _JOB]),
    ]
    ranks = probe(job, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    if ranks.get("ranks") == 2:
        yield Finding("mpirun", "ok", f"{mpirun} starts 2 ranks that reach each other")
    else:
        problem = (
            ranks.get("error") or f"2 ranks were started and saw {ranks['ranks']}: mpirun and mpi4py belong to different MPIs"
        )
        yield Finding("mpirun", "missing", f"{mpirun}: {problem}", install)


def _torch() -> Iterator[Finding]:
    install = installing("train")
    found = probe([sys.executable, "-c", _TORCH])
    if "error" in found:
        yield Finding("torch", "missing", found["error"], install)
        return
    yield Finding("torch", "ok", f"{found['version']}, CUDA devices: {', '.join(found['devices']) or 'none'}")
    yield from _torchvision(found)
    if found["devices"]:
        yield _device_kernels(probe([sys.executable, "-c", _KERNELS]))


def _torchvision(found: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding if torchvision is installed but cannot be imported. `found`: the output of the program _TORCH."""
    try:
        version = metadata.version("torchvision")
    except metadata.PackageNotFoundError:  # reported with the other packages
        return
    number = found.get("ended", 0)
    ended = f"its import ends the process, by {signal.Signals(-number).name if number < 0 else f'exit code {number}'}"
    if problem := found.get("vision", ended):
        detail = f"{version} beside torch {found['version']}: {problem}"
        yield Finding(
            "torchvision models", "optional", detail, "pip install --upgrade torch torchvision, together; or other models"
        )


def _device_kernels(found: Mapping[str, Any]) -> Finding:
    """Return the finding on codecs that have a formula, from their check on all CUDA devices (psnode.codecs.device.checks).

    `found`: the result of the check.
    """
    if "error" in found:
        return Finding("codecs on the GPU", "optional", found["error"], installing("gpu"))
    if found["problems"]:
        remedy = "report it: a new driver or CuPy may give other results"
        return Finding("codecs on the GPU", "optional", "; ".join(found["problems"]), remedy)
    return Finding("codecs on the GPU", "ok", f"the processor's bytes: {', '.join(found['good'])}")


def _data(directory: Path) -> Finding:
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        return Finding(
            "data", "missing", f"{directory}: {error.strerror}", "name an existing directory, or train with --download"
        )
    if not names:
        return Finding("data", "missing", f"{directory} is empty", "put the data set's files there, or train with --download")
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return Finding("data", "ok", f"{directory}: {', '.join(names[:5])}{more}")


def _show(findings: list[Finding]) -> None:
    """Print a table as wide as the terminal. Long paths are wrapped, and each remedy has its own line."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {"ok": "green", "missing": "red", "optional": "yellow"}
    table = Table(box=None, pad_edge=False, show_header=False, title="psnode doctor", title_justify="left")
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        state = f"[{colours[finding.state]}]{finding.state}[/]"
        table.add_row(state, finding.what, escape(finding.detail))
        if finding.remedy:
            table.add_row("", "", f"[bold]to do:[/] {escape(finding.remedy)}")
    console = Console(highlight=False)
    console.print(table)
    console.print(escape(_verdict(findings)))


def _verdict(findings: Sequence[Finding]) -> str:
    """Return the last line of the report. It states if a run can work on this machine, and names the findings to mend.

    The findings are in the order of the checks, because mending one may also mend later ones.
    """
    missing = [finding.what for finding in findings if finding.state == "missing"]
    if missing:
        then = f"; then look at {', '.join(missing[1:])}" if missing[1:] else ""
        return f"A run cannot work here. Mend {missing[0]} first{then}."
    optional = [finding.what for finding in findings if finding.state == "optional"]
    more = f' Optional, with a "to do" above: {", ".join(optional)}.' if optional else ""
    return f"All is well: a run can work here.{more}"
