"""A batch script for Slurm that runs a job on the allocated nodes, stops it before the time limit, requeues it and resumes it.

Before the time limit, Slurm sends USR1 to the script (`--signal`). psnode then writes a checkpoint and exits with 75. After
this exit code, the script calls `scontrol requeue`, and the next start of the job resumes the run. After TERM (scancel,
preemption) psnode writes a checkpoint too, but the script does not requeue the job: Slurm decides if it runs again.
"""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from psnode.config.amounts import counted
from psnode.errors import ConfigurationError

_TIME = re.compile(r"\d+(:\d+(:\d+)?)?|\d+-\d+(:\d+(:\d+)?)?")  # formats of sbatch: minutes, M:S, H:M:S, D-H, ...
_GPUS = re.compile(r"gpus|(gres|tres-per-\w+)=(.*[,/:=])?gpu\b")  # options of sbatch that request GPUs
_MARGIN = 10.0  # seconds from psnode's own KILL to Slurm's KILL
_OURS = ("signal", "requeue", "no-requeue", "nodes", "ntasks", "ntasks-per-node", "open-mode", "array")


@dataclass(frozen=True)
class BatchJob:
    """Parameters of a batch script. Raises ConfigurationError for invalid ones.

    * workers: number of workers; the master, `spares` and `servers` come in addition
    * workers_per_node: ranks per node; if the master is "beside", the first node has one rank more
    * master: "beside" (on the first node, with workers) or "apart" (on its own node)
    * time: time limit in sbatch's notation, such as 4:00:00; None: the partition's limit
    * gres: generic resources of every node, such as gpu:4
    * cpus_per_rank: cores per rank
    * kill_after: seconds from the request to stop until the job is killed; in this time it writes its last checkpoint
    * starter: "mpirun", under which a job survives dead workers, or "srun" with PMIx
    * environment: directory of the virtual environment, at the same path on all nodes and on this machine
    * extra: more options of sbatch, such as qos=long
    """

    workers: int
    spares: int = 0
    workers_per_node: int = 1
    master: str = "beside"
    name: str = "psnode"
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    gres: str | None = None
    cpus_per_rank: int | None = None
    kill_after: float = 110.0
    starter: str = "mpirun"
    environment: Path = Path(sys.prefix)
    extra: tuple[str, ...] = ()
    servers: int = 0

    def __post_init__(self) -> None:
        for option, value in (("partition", self.partition), ("account", self.account), ("gres", self.gres), ("name", self.name)):
            if value is not None and not re.fullmatch(r"[\w.,:=+@/-]+", value):
                raise ConfigurationError(f"--{option} {value!r}: sbatch takes a name without spaces")
        if self.time is not None and not _TIME.fullmatch(self.time):
            raise ConfigurationError(f"--time {self.time!r}: use sbatch's notation: 90 (minutes), 4:00:00, 2-12 (days-hours)")
        for each in self.extra:
            if not re.fullmatch(r"[a-z][a-z-]*(=[^\s=]\S*)?", each):
                raise ConfigurationError(f"--sbatch {each!r}: an option of sbatch without its dashes, such as qos=long")
            if each.partition("=")[0] in _OURS:
                raise ConfigurationError(f"--sbatch {each}: the script sets {each.partition('=')[0]} itself: leave it out")

    @property
    def ranks(self) -> int:
        """Return the number of ranks in the job."""
        return 1 + self.workers + self.spares + self.servers

    @property
    def nodes(self) -> int:
        """Return the number of nodes for all ranks."""
        return -(-(self.ranks - 1) // self.workers_per_node) + (self.master == "apart")

    @property
    def asks_for_gpus(self) -> bool:
        """Return True if the options of sbatch request GPUs, by --gres, --gpus or a related option."""
        return any(_GPUS.match(option) for option in (f"gres={self.gres}", *self.extra))

    @property
    def first_node(self) -> int:
        """Return the number of ranks on the first node."""
        return 1 if self.master == "apart" else 1 + min(self.workers_per_node, self.ranks - 1)

    @property
    def slots(self) -> int:
        """Return the number of ranks on the fullest node. Slurm is asked for this number on every node."""
        return max(self.first_node, min(self.workers_per_node, self.ranks - 1))


def batch_script(job: BatchJob, command: Sequence[str], train_dir: Path, mpirun_args: Sequence[str] = ()) -> str:
    """Return the text of the batch script. `command`: the word `train` and its arguments, which write to `train_dir`.

    A relative `train_dir` is resolved against the directory from which the script is submitted. All nodes must see that
    directory.
    """
    options = "\n".join(f"#SBATCH --{each}" for each in _options(job))
    command, fresh = _parted(command)
    where = f"{job.workers_per_node} a node, the master {job.master}" + (" them" if job.master == "beside" else "")
    return f"""#!/usr/bin/env bash
# A master and {counted(job.workers, "worker")}{_others(job)}, {where}.
# Submit it from a directory that all nodes see: sbatch FILE. Before its time is over, psnode writes a checkpoint, and
# the job goes back to the queue and on from there; when it is preempted, only if Slurm has PreemptMode=REQUEUE.
{options}
set -euo pipefail
PATH={shlex.quote(str(job.environment))}/bin:$PATH
{_threads(job)}hosts=$(mktemp -p . .psnode-hosts-XXXXXX)
trap 'rm -f "$hosts"' EXIT
# the batch script runs on the first node, which Slurm lists first: rank 0, the master
{_hosts(job)}
start=({shlex.join(fresh)})
[[ ! -e {shlex.quote(str(train_dir))}/checkpoints/latest ]] || start=(--resume)
{_start(job, command, mpirun_args)} &
job=$! again=yes
trap 'kill -USR1 "$job" 2>/dev/null || true' USR1
# scancel or a preemption, after which Slurm itself decides
trap 'again=; kill -USR1 "$job" 2>/dev/null || true' TERM
code=0
wait "$job" || code=$?
# a signal ends the wait, not the job
while kill -0 "$job" 2>/dev/null; do
    code=0
    wait "$job" || code=$?
done
rm -f "$hosts"  # here too: a job that goes back to the queue may be killed before its traps run
if [[ $code -eq 75 && $again ]]; then
    scontrol requeue "$SLURM_JOB_ID" || echo "this cluster does not queue a job again: sbatch this file anew" >&2
fi
exit "$code"
"""


def _parted(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return two lists of arguments of `command`: those of every start of the job, and those of only its first start.

    Only the first start gets --init-from, because a resumed run does not accept this flag.
    """
    always, first, words = list[str](), list[str](), iter(command)
    for word in words:
        if word.partition("=")[0] == "--init-from":
            first += [word] if "=" in word else [word, *itertools.islice(words, 1)]
        elif word != "--resume":
            always.append(word)
    return always, first


def _others(job: BatchJob) -> str:
    found = ((job.spares, "spare"), (job.servers, "server"))
    return "".join(f", {counted(number, name)}" for number, name in found if number)


def _options(job: BatchJob) -> Iterator[str]:
    yield f"job-name={job.name}"
    yield f"nodes={job.nodes}"
    yield f"ntasks-per-node={job.slots}"
    given = {"cpus-per-task": job.cpus_per_rank, "partition": job.partition, "account": job.account}
    given |= {"gres": job.gres, "time": job.time}
    yield from (f"{option}={value}" for option, value in given.items() if value is not None)
    yield f"signal=B:USR1@{job.kill_after + _MARGIN:.0f}"
    yield "requeue"
    yield "open-mode=append"
    if not any(each.startswith("output=") for each in job.extra):
        yield f"output={job.name}-%j.log"
    yield from job.extra


def _threads(job: BatchJob) -> str:
    return f"export PSNODE_THREADS=${{PSNODE_THREADS:-{job.cpus_per_rank}}}\n" if job.cpus_per_rank else ""


def _hosts(job: BatchJob) -> str:
    """Return the shell commands that write the file of hosts: one line per node for mpirun, one line per rank for srun."""
    line = 'echo "$node slots=$slots"'
    if job.starter == "srun":
        line = 'for ((i = 0; i < slots; i++)); do echo "$node"; done'
    only = f" | sed -n 1,{job.ranks}p" if job.starter == "srun" else ""
    return f"""slots={job.first_node}
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    {line}
    slots={job.workers_per_node}
done{only} >"$hosts\""""


def _start(job: BatchJob, command: Sequence[str], mpirun_args: Sequence[str]) -> str:
    train = f'{shlex.join(command)} "${{start[@]}}"'
    if job.starter == "srun":
        # only SLURM_HOSTFILE, with its distribution, can place every single rank
        return f"""export SLURM_HOSTFILE=$hosts PSNODE_STOP_DEADLINE=${{PSNODE_STOP_DEADLINE:-{0.7 * job.kill_after:g}}}
srun --mpi=pmix --ntasks={job.ranks} --distribution=arbitrary --kill-on-bad-exit=0 psnode {train}"""
    arguments = "".join(f" --mpirun-arg {shlex.quote(each)}" for each in mpirun_args)
    return f"""psnode launch -n {job.workers} --hostfile "$hosts" --kill-after {job.kill_after:g}{arguments} -- \\
    {train}"""
