"""The part of this process in a job: its transport, its task, and its roles."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import psnode
from psnode.codecs.registry import load_codec
from psnode.config import Config, streams
from psnode.config.cores import asked_threads, pool, usable_cores
from psnode.config.job_folder import asked_signal
from psnode.config.logs import hushed, shown
from psnode.config.parent import follow_parent
from psnode.config.source import source
from psnode.errors import ConfigurationError, PsnodeError
from psnode.jobs import job_end
from psnode.plans.roles import MASTER
from psnode.protocol.channel import TAG, StopRequest
from psnode.protocol.messages import Hello
from psnode.records.directory_lock import refuse_if_held
from psnode.task import Task
from psnode.tasks.loading import make_task, passed_task
from psnode.transport.base import Inbox, Transport
from psnode.transport.mpi.environment import place

if TYPE_CHECKING:
    from psnode.master.start.decision import JobHosts
    from psnode.plans.prediction import Prediction

_LOG = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_MAY_BE_IGNORED = (signal.SIGINT, signal.SIGHUP)  # ignored under nohup, or if a shell starts the program in the background


def run(config: Config, task: Task | None = None) -> int:
    """Run this process's part of the job that `config` describes, and return the exit code. Raises PsnodeError.

    If the setting `local` is given, the master and the workers are threads of this process. Otherwise the process is one rank
    of an MPI job. `task`, if given, replaces the task that `config` names; every rank must pass an equal instance.
    """
    refuse_to_run_anew()
    streams.outlast()
    job_end.begin()
    code = PsnodeError.exit_code
    try:
        code = _run(config, task)
    except PsnodeError as error:
        code = error.exit_code
        raise
    finally:
        job_end.end(code)
    return code


def _run(config: Config, task: Task | None) -> int:
    config.validate()
    if config.codec:
        load_codec(config.codec)
    if task is not None:
        config = replace(config, task=passed_task(task))
    if config.local is not None and (here := place()) is not None and here.size > 1:
        raise ConfigurationError("--local runs all workers in one process: leave it out, or leave out mpirun")
    if config.local is not None:
        refuse_if_held(config.directory.resolve())
    config = replace(config, threads=config.threads or stated_threads(config))
    limit_threads(config.threads or 1)  # until all ranks of this machine are known
    with shown(here.rank if (here := place()) is not None else 0), hushed(config.quiet):
        return _run_local(config, task) if config.local is not None else _run_mpi(config, task)


def refuse_to_run_anew() -> None:
    """Raise ConfigurationError in a process that was started to load batches, but runs the user's whole program again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigurationError(
            "a process that loads batches runs the program again: put the start of the run under `if __name__ == '__main__':`"
        )


def _run_local(config: Config, task: Task | None) -> int:
    from psnode.master import lead
    from psnode.transport.loopback import loopback_group
    from psnode.worker import work

    assert config.local is not None
    ends = loopback_group(1 + config.local + config.servers)
    torch_lock = threading.RLock()  # all threads share the one generator of torch

    def be_worker(end: Transport) -> None:
        try:
            work(end, config, lambda c: task or make_task(c), hello(), torch_lock)
        except Exception:
            _LOG.exception("worker %d ended with an exception", end.rank)
        finally:
            end.close()

    threads = [threading.Thread(target=be_worker, args=(end,), name=f"worker-{end.rank}", daemon=True) for end in ends[1:]]
    for thread in threads:
        thread.start()
    with ends[0] as end, signals(end.inbox(TAG)):
        try:
            return lead(end, config, lambda c: task or make_task(c), hello(), predict=_predicted)
        finally:
            for thread in threads:
                thread.join(config.pause_deadline)


def _run_mpi(config: Config, task: Task | None) -> int:
    found = place()
    if found is None or found.size < 2:
        raise ConfigurationError(
            "a job needs a master and at least one worker: mpirun -n 3 psnode train ..., psnode launch -n 2 -- train ..., "
            "or psnode train --local 2 without MPI"
        )
    from psnode.transport.mpi import endpoint as mpi

    follow_parent(signal.SIGTERM)
    transport = mpi.start(seconds=config.start_deadline)
    code = 1
    try:
        with signals(transport.inbox(TAG)):
            code = _take_part(transport, config, task)
    except PsnodeError as error:
        code = error.exit_code
        if transport.rank == MASTER:
            raise
        _LOG.error(error)
    finally:
        transport.close()
        if not transport.clean:
            _leave_at_once(code)
    return code


def _take_part(transport: Transport, config: Config, task: Task | None) -> int:
    def make(agreed: Config) -> Task:
        return task or make_task(agreed)

    if transport.rank == MASTER:
        from psnode.master import lead

        return lead(transport, config, make, hello(), predict=_predicted)
    from psnode.worker import work

    return work(transport, config, make, hello(), contextlib.nullcontext())


def _predicted(config: Config, task: Task, topologies: Sequence[str], hosts: JobHosts) -> Mapping[str, Prediction]:
    from psnode.jobs.planning.routing.predicted_topologies import predicted  # slow to import, and few jobs need it

    return predicted(config, task, topologies, hosts)


def _leave_at_once(code: int) -> None:
    """Log the current error, if there is one, and exit without MPI_Finalize."""
    error = sys.exception()
    if isinstance(error, PsnodeError):
        _LOG.error("error: %s", error)
        code = error.exit_code
    elif error is not None:
        _LOG.error("an unexpected end", exc_info=error)
    job_end.end(code)
    exit_without_mpi(code)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a program that ends with `error`."""
    if not isinstance(error, SystemExit):
        return 1
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def exit_without_mpi(code: int) -> NoReturn:
    """Exit without MPI_Finalize, which can hang when a rank is lost."""
    job_end.leave()
    # remove the folder of sockets, which Python removes only at a normal exit
    if folder := getattr(multiprocessing.current_process(), "_config", {}).get("tempdir"):
        shutil.rmtree(folder, ignore_errors=True)
    streams.flush()
    os._exit(code)


@contextlib.contextmanager
def signals(inbox: Inbox) -> Iterator[None]:
    """Turn the signals INT, TERM, USR1 and HUP into events of `inbox` inside the context.

    A second INT ends the process as usual. If the process already ignored INT or HUP, it continues to ignore this signal.
    Outside the main thread, signals are left as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def request(number: int, frame: object) -> None:
        inbox.post(StopRequest(asked_signal(signal.Signals(number).name)))
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {
        number: signal.signal(number, request)
        for number in _SIGNALS
        if number not in _MAY_BE_IGNORED or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def hello() -> bytes:
    """Return the HELLO message of this rank, which states its host, process, version of psnode and cores."""
    from psnode.exchange.machine import Machine

    here = Machine.here()
    return Hello(here.host, os.getpid(), psnode.__version__, source(), here.cores, pool(), here.arithmetic).to_bytes()


def stated_threads(config: Config) -> int:
    """Return the number of threads for this process; 0 if rank 0 is to divide the cores among the ranks.

    If OMP_NUM_THREADS is set, its value is returned. Otherwise the result is the number of all cores if the workers are
    threads of this process, because they take turns. For all other jobs it is 0.
    """
    return asked_threads() or (usable_cores() if config.local is not None else 0)


def limit_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
