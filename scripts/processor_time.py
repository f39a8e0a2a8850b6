"""Processor time of a step: scripts/processor_time.py [FLAGS of psnode train] prints a Markdown table.

A job of a master and four workers trains on this host over TCP, ResNet-18 unless the flags say otherwise. While it takes steps 10
to 40, the times booked by the kernel are read for every thread of every rank, and for the machine as a whole. All figures are
milliseconds a step; those of workers are the mean over them. The rest of the machine's is other processes' and the kernel's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKERS, FIRST, LAST = 4, 10, 40
FLAGS = ["--network", "torchvision:resnet18", "--dataset", "synthetic", "--batch-size", "16", "--threads", "1"]
KINDS = ("user", "nice", "system", "idle", "waiting", "interrupts", "soft interrupts", "stolen")
OPTIONS = ["--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
Threads = dict[tuple[int, int, int], float]  # rank, process, thread: milliseconds


def start(train_dir: Path, flags: list[str]) -> subprocess.Popen[bytes]:
    """The job."""
    own = ["--max-steps", str(LAST + 5), "--eval-freq", "0", "--no-tensorboard", "--log-interval", "1000"]
    command = ["mpirun", "-n", str(WORKERS + 1), *OPTIONS, sys.executable, "-m", "psnode", "train", *FLAGS, *own, *flags]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    return subprocess.Popen([*command, "--train-dir", str(train_dir)], env=environment, stdout=sys.stderr)


def threads(train_dir: Path) -> Threads:
    """Processor time of every thread of every rank."""
    found: Threads = {}
    for process in Path("/proc").iterdir():
        try:
            if not process.name.isdigit() or str(train_dir).encode() not in (process / "cmdline").read_bytes().split(b"\0"):
                continue
            ranks = [
                word for word in (process / "environ").read_bytes().split(b"\0") if word.startswith(b"OMPI_COMM_WORLD_RANK=")
            ]
            for thread in (process / "task").iterdir() if ranks else ():
                nanoseconds = int((thread / "schedstat").read_text().split()[0])
                found[int(ranks[0].partition(b"=")[2]), int(process.name), int(thread.name)] = nanoseconds / 1e6
        except OSError:
            pass  # ended meanwhile
    return found


def machine() -> list[float]:
    """Time of all processors together, by KINDS."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return [1e3 / os.sysconf("SC_CLK_TCK") * int(word) for word in words[1 : 1 + len(KINDS)]]


def wait_for(step: int, file: Path, job: subprocess.Popen[bytes]) -> int:
    """Return when the record of `step` is there: how many there are."""
    count = 0
    while count < step:
        if job.poll() is not None:
            raise SystemExit(f"the job ended with {job.returncode} after {count} steps")
        time.sleep(0.1)
        count = file.read_bytes().count(b"\n") if file.exists() else 0
    return count


def main(flags: list[str]) -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="psnode-processor-time-") as folder:
        train_dir = Path(folder) / "run"
        job = start(train_dir, flags)
        first = wait_for(FIRST, train_dir / "metrics.jsonl", job)
        before, all_before, began = threads(train_dir), machine(), time.monotonic()
        steps = wait_for(LAST, train_dir / "metrics.jsonl", job) - first
        after, all_after, ended = threads(train_dir), machine(), time.monotonic()
        if job.wait(120):
            return job.returncode
    used: dict[tuple[str, str], float] = defaultdict(float)
    for (rank, process, thread), milliseconds in after.items():
        role = "a worker" if rank else "the master"
        kind = "main thread" if thread == process else "its other threads"
        used[role, kind] += (milliseconds - before.get((rank, process, thread), 0.0)) / steps / (WORKERS if rank else 1)
    print(f"| {1e3 * (ended - began) / steps:.1f} ms a step | ms |\n|---|---:|")
    for (role, kind), milliseconds in sorted(used.items()):
        print(f"| {role}, {kind} | {milliseconds:.1f} |")
    total = sum(milliseconds * (WORKERS if role == "a worker" else 1) for (role, _), milliseconds in used.items())
    print(f"| all processes of the job | {total:.1f} |")
    for kind, one, other in zip(KINDS, all_before, all_after, strict=True):
        if other - one >= steps:
            print(f"| the machine, {kind} | {(other - one) / steps:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
