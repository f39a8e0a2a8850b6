"""The command `psnode launch`: it runs mpirun with the options of a fault-tolerant job until its last process has ended."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from psnode.config.amounts import amount, counted
from psnode.config.cores import usable_cores
from psnode.config.job_folder import VARIABLE
from psnode.errors import ConfigurationError, MissingRanksError, StoppedError, installing
from psnode.jobs import job_end
from psnode.jobs.hosts.hostfile import hosts_of, in_turn, text_of, used
from psnode.jobs.hosts.start_failures import not_started, refuse_too_few_slots
from psnode.jobs.job_end import Told
from psnode.jobs.shared_memory import A_RANK, PLACE, room
from psnode.jobs.supervision import Ended, supervise
from psnode.jobs.sweeping import swept
from psnode.records.directory import CONFIG
from psnode.records.directory_lock import refuse_if_held
from psnode.records.metrics import SUMMARY
from psnode.transport.mpi.environment import UNBUFFERED

PSNODE = "psnode"
PROGRAM = "psnode.jobs.program"  # the module that runs the file of the user's program
_LOG = logging.getLogger(__name__)

INTERRUPTED = 130  # exit code after Ctrl-C
_FINAL = (0, 2, 4, 5, INTERRUPTED)  # exit codes after which no restart is useful: success, and errors that would recur
# environment variables of schedulers; if one is set, mpirun finds hosts by itself
_ALLOCATIONS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE")
_TO_STOP = 0.7  # fraction of the time before KILL for collecting the last checkpoint; the rest is for writing it
_ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def launch(
    n_workers: int,
    command: Sequence[str],
    *,
    hostfile: Path | str | None = None,
    mpirun_args: Sequence[str] = (),
    kill_after: float = 10.0,
    restarts: int = 0,
    run_directory: Path | None = None,
    program: str | Sequence[str] = PSNODE,
) -> int:
    """Run `psnode COMMAND...` on one master and `n_workers` workers, and return rank 0's exit code.

    Args:
        hostfile: file of hosts, one per line, the master's first. Lines `NAME slots=N` are filled in order. A plain list of
            addresses gets one rank per host in turn. None: all ranks run on this host.
        mpirun_args: arguments for mpirun. They take precedence over psnode's own choices.
        kill_after: seconds from a request to stop (TERM, INT, USR1, HUP) until every process is killed.
        restarts: maximum number of restarts, with --resume, after failures of the job. An error that would recur, such as an
            invalid setting, causes no restart.
        run_directory: directory of the run that a restart resumes. If it does not exist yet, the restart begins a new run.
        program: the program that every rank runs with the arguments `command`: a module for this interpreter, or the words of
            a command line. For a program other than PSNODE and PROGRAM, the launcher cannot tell a normal exit from a death.

    Raises ConfigurationError if there is no mpirun, no such hostfile, n_workers < 1, or another job at work in `run_directory`.
    """
    if n_workers < 1:
        raise ConfigurationError(f"n_workers is {n_workers}: a job needs at least 1 worker")
    if hostfile is not None and not mpirun_args:
        refuse_too_few_slots(Path(hostfile), n_workers + 1)
    environment = dict(os.environ)
    if hasattr(os, "geteuid") and os.geteuid() == 0 and any(name not in environment for name in _ROOT_VARIABLES):
        _LOG.warning("running as root, so %s are set for mpirun", " and ".join(_ROOT_VARIABLES))
        environment.update(dict.fromkeys(_ROOT_VARIABLES, "1"))
    environment.setdefault("PSNODE_STOP_DEADLINE", f"{_TO_STOP * kill_after:g}")
    if _is_watched():  # the terminals that mpirun gives its ranks lack a size
        environment.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    mpirun = find_mpirun()
    here = _master_is_here(hostfile, mpirun_args, environment)
    if run_directory is not None and here:
        refuse_if_held(run_directory.resolve())
    _LOG.info("starting %s%s", counted(n_workers + 1, "rank"), _where(n_workers + 1, hostfile, mpirun_args, environment))
    line = mpirun_command(mpirun, n_workers + 1, hostfile, mpirun_args, environment)
    tells = program in (PSNODE, PROGRAM) and here
    words = [sys.executable, "-m", program] if isinstance(program, str) else program
    started = [*line, *startable(words)]
    # if the directory is visible on this host, a master that left no summary in it was killed
    judged = run_directory is not None and (hostfile is None or (run_directory / CONFIG).exists())
    ended = _run([*started, *command], environment, kill_after, run_directory, judged, hostfile, tells)
    for number in range(1, restarts + 1):
        if ended.asked or ended.code in _FINAL:
            break
        resumable = run_directory is not None and (run_directory / CONFIG).exists()
        again = resuming(command) if resumable else list(command)
        how = "from its last checkpoint" if resumable else "from the beginning"
        _LOG.warning("the job ended with %d: started again %s (%d of %d)", ended.code, how, number, restarts)
        ended = _run([*started, *again], environment, kill_after, run_directory, judged, hostfile, tells)
    return ended.code


def resuming(command: Sequence[str]) -> list[str]:
    """Return `command`, changed so that it continues its run.

    --init-from, --new-head and --no-new-head are removed. --resume and --trust-run are added, unless the command has --resume
    already.
    """
    again = []
    flags = iter(command)
    for flag in flags:
        if flag == "--init-from":
            next(flags, None)
        elif not flag.startswith("--init-from=") and flag not in ("--new-head", "--no-new-head"):
            again.append(flag)
    return again if "--resume" in again else [*again, "--resume", "--trust-run"]


def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    kill_after: float,
    run_directory: Path | None,
    judged: bool,
    hostfile: Path | str | None,
    tells: bool,
) -> Ended:
    """Run the job once. Return its exit code and the signal that asked it to stop.

    The exit code is the one in the summary if the job has written a summary during this run. Otherwise it is the code that
    rank 0 has reported. mpirun's own exit code would not do: it is that of the first rank that exits with a code other
    than 0, and with fault tolerance it is 0 if every rank was killed. A signal that asked rank 0 itself to stop counts
    like a signal to the launcher.
    """
    before = _stamp(run_directory)
    # mpirun names its folder by its process id, and does not start if a killed mpirun with the same id has left its folder
    with swept("psnode-mpirun-") as (sessions, tell_session):
        place = {} if "PRTE_MCA_prte_tmpdir_base" in environment else {"PRTE_MCA_prte_local_tmpdir_base": str(sessions)}
        file = sessions / "job-end"
        try:
            ended = supervise(
                command,
                {**place, **environment, VARIABLE: str(file)},
                kill_after,
                tell_session,
                partial(job_end.ask, file),
            )
        finally:
            if _is_watched():  # show the cursor again: it is hidden if a rank was killed while drawing a progress bar
                print("\x1b[?25h", end="", flush=True)
        told = job_end.read(file)
    code, asked = _judge(ended, told, run_directory, before, judged, hostfile, tells)
    if code == StoppedError.exit_code and ended.asked == signal.SIGINT:  # ranks on other hosts only know that they received USR1
        code = INTERRUPTED
    return Ended(code, ended.asked or asked)


def _judge(
    ended: Ended,
    told: Told,
    run_directory: Path | None,
    before: tuple[int, int] | None,
    judged: bool,
    hostfile: Path | str | None,
    tells: bool,
) -> tuple[int, int]:
    """Return a job's exit code, and the signal that asked rank 0 itself to stop (0: no signal).

    Raises ConfigurationError if the job did not start because of the hosts in `hostfile`.
    """
    if run_directory is not None and _stamp(run_directory) not in (None, before):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            left = json.loads((run_directory / SUMMARY).read_bytes())
            return int(left["exit_code"]), signal.SIGUSR1 * (left["stop_reason"] == "signal")
    if hostfile is not None and not (ended.asked or told.begun) and (fault := not_started(Path(hostfile), ended)):
        raise ConfigurationError(fault)
    code = _code(ended, told, run_directory is not None, judged)
    if code == 0 and tells and not told.left and told.code is None:
        _LOG.error("error: rank 0 was killed, or ended without Python's knowledge: its work is not done")
        code = MissingRanksError.exit_code
    return code, signal.SIGUSR1 * (code == StoppedError.exit_code)


def _is_watched() -> bool:
    """Return True if the output goes to a terminal that can show a progress bar."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _code(ended: Ended, told: Told, trains: bool, judged: bool) -> int:
    """Return the exit code of a job that has left no summary.

    `trains`: True if the job has a run directory. `judged`: True if the lack of a summary means that rank 0 was killed.
    """
    if told.code:
        return told.code
    if told.code == 0 and (told.left or not ended.asked):
        return ended.code
    # rank 0 was stopped before it could report this, or killed while stopping: the last checkpoint is valid
    if ended.asked and (ended.code not in _FINAL[1:] if trains else ended.code == 0 or ended.code > 128):
        return StoppedError.exit_code
    return MissingRanksError.exit_code if ended.code == 0 and (judged or told.begun) else ended.code


def _stamp(run_directory: Path | None) -> tuple[int, int] | None:
    """Return a value that distinguishes the summary in the directory from other summaries; None if there is no summary."""
    with contextlib.suppress(OSError):
        found = (run_directory / SUMMARY).stat() if run_directory is not None else None
        return (found.st_mtime_ns, found.st_ino) if found is not None else None
    return None


def find_mpirun() -> str:
    """Return the path of the mpirun in this Python's environment or, if it has none, of the first mpirun on the PATH.

    Raises ConfigurationError if there is no mpirun.
    """
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise ConfigurationError(f"there is no mpirun: {installing('mpi')}, or put your MPI's on the PATH")
    return found


def startable(program: Sequence[str]) -> list[str]:
    """Return `program` in a form that mpirun can start.

    mpirun checks the permission to execute by the user's rights, and ignores capabilities such as root's. If it would refuse
    the program for this reason, the result starts the program through /usr/bin/env.
    """
    return [*([] if os.access(program[0], os.X_OK) else ["/usr/bin/env"]), *program]


def mpirun_command(
    mpirun: str, ranks: int, hostfile: Path | str | None, mpirun_args: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """Return the mpirun part of the command line, up to the program."""
    line = [mpirun, "-n", str(ranks)]
    if _is_open_mpi(mpirun):
        line += _open_mpi_options(mpirun, ranks, hostfile, mpirun_args, environment)
    elif hostfile is not None:
        text_of(Path(hostfile))
        line += ["-f", str(hostfile)]
    return [*line, *mpirun_args]


def _open_mpi_options(
    mpirun: str, ranks: int, hostfile: Path | str | None, mpirun_args: Sequence[str], environment: Mapping[str, str]
) -> Iterator[str]:
    def chosen(option: str) -> bool:
        return option in mpirun_args or f"--{option}" in mpirun_args or f"OMPI_MCA_{option}" in environment

    if _has_fault_tolerance(mpirun) and not chosen("with-ft"):
        yield from ("--with-ft", "ulfm")
        # Only these components survive the death of a rank. Naming them also saves a second of probing other components.
        if not chosen("pml"):
            yield from ("--mca", "pml", "ob1")
        if not chosen("btl"):
            is_here = hostfile is None and _stays_here(mpirun_args, environment)
            yield from ("--mca", "btl", _ways(ranks) if is_here else "self,sm,tcp")
        if _is_watched() and not chosen("stream-buffering"):
            yield from UNBUFFERED
    # A rank computes with several threads. They would share one core if mpirun bound the rank to a core.
    if not chosen("bind-to"):
        yield from ("--bind-to", "none")
    if hostfile is not None:
        yield from ("--hostfile", str(hostfile))
        if in_turn(Path(hostfile)) and not chosen("map-by"):
            yield from ("--map-by", "node")
        for name in environment:
            if (name.startswith("PSNODE_") and name != VARIABLE) or name == "OMP_NUM_THREADS":
                yield from ("-x", name)
    elif ranks > usable_cores():
        yield "--oversubscribe"


def _ways(ranks: int) -> str:
    """Return the names of Open MPI's transports between ranks of this host.

    Normally these include shared memory. If it is too small for `ranks` ranks, TCP takes its place.
    """
    found = room()
    if found is None or found.holds(ranks):
        return "self,sm"
    _LOG.warning(
        "%s has %s free and %d ranks take %s: they communicate over TCP, which is slower; make it larger (docs/containers.md)",
        PLACE, amount(found.free), ranks, amount(ranks * A_RANK),
    )  # fmt: skip
    return "self,tcp"


def _stays_here(mpirun_args: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return True if mpirun uses only this host, because no argument, scheduler or default names another host."""
    named = any("host" in argument or "machinefile" in argument or "appfile" in argument for argument in mpirun_args)
    return not named and not any(name in _ALLOCATIONS or "hostfile" in name.lower() for name in environment)


def _master_is_here(hostfile: Path | str | None, mpirun_args: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return True if rank 0 is known to run on this host."""
    if hostfile is None:
        return _stays_here(mpirun_args, environment)
    return not mpirun_args and hosts_of(Path(hostfile))[0].is_here


def _where(ranks: int, hostfile: Path | str | None, mpirun_args: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the text " on N hosts", where N is the number of hosts that get ranks; empty if only mpirun knows this number."""
    if hostfile is None:
        return " on 1 host" if _stays_here(mpirun_args, environment) else ""
    number = None if mpirun_args else used(Path(hostfile), ranks)
    return f" on {counted(number, 'host')}" if number is not None else ""


def _is_open_mpi(mpirun: str) -> bool:
    return "Open MPI" in _output([mpirun, "--version"])


def _has_fault_tolerance(mpirun: str) -> bool:
    """Return True if Open MPI was built with ULFM (its fault tolerance), according to the ompi_info of the same installation."""
    beside = Path(mpirun).with_name("ompi_info")
    return beside.exists() and "ft_mpi_support:yes" in _output([str(beside), "--parsable"])


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{command[0]} cannot be run ({error}): check the MPI installation") from None
