"""Jobs on the cluster: commands that are started on the master and continue there if the connection ends."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import click

from psnode_ec2 import checkpoint_sync
from psnode_ec2.cloud import progress
from psnode_ec2.ec2_errors import SettingsError, failure
from psnode_ec2.end_times import notice, seconds_to_notice
from psnode_ec2.node_ssh import Access
from psnode_ec2.rank_placement import lines as ranks_by_node

RUNS_ALREADY = "a job runs already"  # printed by start_job.sh
_SERVERS = "sharded:servers="  # part of a value of --topology
_TWO_MINUTES = 110  # seconds from an interruption notice to the end of a node, minus the delay until the notice is seen


def over_all(command: Sequence[str]) -> bool:
    """Return True for a command that runs on all nodes through `psnode launch`: a training, or a program with a session."""
    return bool(command) and (command[0] == "train" or command[0].endswith(".py"))


def start(way: Access, command: Sequence[str], counts: Sequence[int], where: str = ".") -> str:
    """Start `psnode COMMAND...` and return the folder of the job, relative to remote_dir.

    `train` and programs run on all nodes, with `counts` ranks on each; other commands run only on the master. `where`: the folder
    in remote_dir in which the command runs. Raises SettingsError, and RemoteError with code 2 if a job runs already or
    psnode is not installed.
    """
    if not command:
        raise SettingsError("run needs a command: run -- train --network LeNet")
    settings = way.settings
    line = ["psnode", *command]
    if over_all(command):
        command = [*command, *_trust(command)]
        up = "" if where == "." else "../"
        stop = ["--kill-after", str(_TWO_MINUTES)] if settings.method == "spot" else ["--kill-after", "60"]
        ranks = ["-n", str(sum(counts) - 1), "--hostfile", f"{up}hosts_address", *stop, *_mpi(way, command, counts)]
        line = ["psnode", "launch", *ranks, "--", *command]
    if any(node.spot for node in way.nodes):
        spot = [node for node in way.nodes if node.spot]
        way.everywhere(spot, "start_watch.sh", settings.remote_dir, f"{settings.venv}/bin/python", settings.rebalance)
    stored = bool(settings.checkpoints) and over_all(command)
    if stored and "--resume" in command:
        checkpoint_sync.bring_back(way, command, where)
    hosts = ",".join(ranks_by_node(way.nodes, counts))
    folder = f"{settings.venv}/bin"
    job = way.script(way.master, "start_job.sh", settings.remote_dir, folder, hosts, where, *line).strip() or "jobs/last"
    if stored:
        checkpoint_sync.keep(way)
    return job


def _trust(command: Sequence[str]) -> list[str]:
    """Return --trust-run for a resumed run whose command has no such option and no --task.

    The record of the run may name code. This code is trusted, since the user has already run it on these nodes.
    """
    said = any(word.partition("=")[0] in ("--task", "--trust-run", "--no-trust-run") for word in command)
    return ["--trust-run"] if "--resume" in command and not said else []


def _mpi(way: Access, command: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Return arguments of mpirun for this cluster.

    Without EFA, they restrict TCP to the network of the nodes, since an image may have other networks. With several ranks on a
    node, the hostfile states the number of slots, which leaves no room for spares and additional servers. If the job has such
    ranks, the slots are oversubscribed.
    """
    words = []
    if not way.settings.efa:
        words += ["--mca", "btl_tcp_if_include", common_network([node.private_address for node in way.nodes])]
    if max(counts) > 1 and any(word.partition("=")[0] == "--spares" or _SERVERS in word for word in command):
        words += ["--map-by", "slot:OVERSUBSCRIBE"]
    return [part for word in words for part in ("--mpirun-arg", word)]


def common_network(addresses: Sequence[str]) -> str:
    """Return the smallest network that contains all `addresses`.

    Open MPI gets this network, because with a list of addresses it would ignore the addresses of other nodes.
    """
    first, *rest = (ipaddress.ip_interface(address) for address in addresses)
    network = first.network
    while not all(each.ip in network for each in rest):
        network = network.supernet()
    return str(network)


def follow(way: Access, job: str = "jobs/last", lines: str = "+1", *, watching: bool = False) -> int:
    """Print the log of a job until it has ended, and return the job's exit code.

    The first interrupt asks the job to end, and the log is still followed. At the second interrupt, the function returns 130 and
    does not wait for the job. If `watching`, the first interrupt already has this effect.
    """
    asked = watching
    while True:
        process = None
        try:
            process = _follower(way, job, lines, "follow")  # output and an interrupt may come before this call returns
            code = _ended(process, way)
        except KeyboardInterrupt:
            if process is not None:
                process.terminate()
                process.wait()
            if asked:
                progress("the job goes on: logs --follow shows it")
                return 130
            asked = True
            progress("asking the job to write a checkpoint and end; interrupt again to leave it alone")
            stop(way)
            lines = "0"
            continue
        if code == 255:
            raise failure(way.master, "the connection", code, "the job goes on: logs --follow shows it")
        return code


def _ended(process: subprocess.Popen[str], way: Access) -> int:
    """Wait for `process` and return its code.

    If the wait lasts until one hour before the nodes end themselves, print a notice.
    """
    seconds = seconds_to_notice(way.nodes, datetime.datetime.now(datetime.UTC))
    if seconds:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(seconds)
        progress(notice(way.nodes, datetime.datetime.now(datetime.UTC)))
    return process.wait()


def show(way: Access, lines: int) -> int:
    """Print the last `lines` lines of the last job's log. Return the exit code of the printing command, not that of the job."""
    return _follower(way, "jobs/last", str(lines), "once").wait()


def stop(way: Access) -> None:
    """Ask the running job, if any, to write a checkpoint and end."""
    way.script(way.master, "stop_job.sh", way.settings.remote_dir)


def _follower(way: Access, job: str, lines: str, how: str) -> subprocess.Popen[str]:
    words = ["bash", "-s", "--", way.settings.remote_dir, job, lines, how]
    if way.dry_run:
        click.echo(f"would run follow_job.sh on {way.master.name}: {shlex.join(words)}")
        return subprocess.Popen(["true"], text=True)
    with Path(__file__).with_name("follow_job.sh").open() as script:
        # in its own session, so that an interrupt reaches only this process
        return subprocess.Popen(way.line(way.master, shlex.join(words)), stdin=script, text=True, start_new_session=True)
