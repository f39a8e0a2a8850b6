"""Random faults against a running job: scripts/soak.py [--events N] [--steps N] [--seed S] [--data-dir MNIST] [--undisturbed]

Four workers train LeNet under `psnode launch --restarts`. N faults happen at random steps. Either a worker gets SIGKILL, is
stopped for 2 to 12 seconds, or is slowed to a tenth of its speed for 5 s; or the master gets SIGKILL, and the job restarts from
the last checkpoint. With five emulated hosts (scripts/netlab.sh --hosts 5 --rate none -- python scripts/soak.py) a worker is
not slowed; instead its link is cut for 2 to 12 seconds. At least two workers are undisturbed at any time. In the end the job
must exit with 0 by itself, and psnode.records.history.violations must find nothing. The exit code of the script is 0 if both is
true. The script prints Markdown: the faults that it made, the events that the job recorded, and the accuracy of the last
checkpoint. --undisturbed: run the same job without faults.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
from running import Job, cut, host_port, mend, send, slowed  # noqa: E402

WORKERS = 4
FLAGS = ["--batch-size", "16", "--lr", "0.02", "--lr-schedule", "poly", "--threads", "1", "--scheme", "qsgd", "--feedback", "ef"]
FLAGS += ["--downlink", "bf16", "--eval-freq", "50", "--keep-last", "3", "--hash-every", "25", "--no-tensorboard"]
FLAGS += ["--deadline", "2", "--record-history"]
LAUNCH = ["--restarts", "50", "--kill-after", "5"]


class Disturber:
    """Source of random faults in a job. `log`: the time, the step and the text of each fault."""

    def __init__(self, job: Job, rng: random.Random) -> None:
        self._job, self._rng = job, rng
        self._begin = time.monotonic()
        self._busy = set[int]()  # ranks with a lasting fault
        self.log = list[tuple[float, int, str]]()

    def disturb(self) -> bool:
        """Make one fault of a random kind. Return False if this kind is impossible at the moment."""
        ranks = self._job.ranks()
        free = sorted(set(ranks) - {0} - self._busy)
        kind = self._rng.choice(["kill", "stop", "stop", "cut or slow", "restart"])
        if 0 not in ranks or (kind == "restart" and self._busy) or (kind != "restart" and len(free) <= 2):
            return False
        if kind == "restart":
            self._tell("the master gets SIGKILL")
            send(ranks[0], signal.SIGKILL)
            return True
        rank, seconds = self._rng.choice(free), self._rng.uniform(2, 12)
        pid, port = ranks[rank], host_port(rank)
        if kind == "kill":
            self._tell(f"worker {rank} gets SIGKILL")
            send(pid, signal.SIGKILL)
        elif kind == "stop":
            self._tell(f"worker {rank} is stopped for {seconds:.1f} s")
            self._for_a_while(rank, seconds, lambda: send(pid, signal.SIGSTOP), lambda: send(pid, signal.SIGCONT))
        elif port:
            self._tell(f"worker {rank} is cut off for {seconds:.1f} s")
            self._for_a_while(rank, seconds, lambda: cut(port), lambda: mend(port))
        else:
            self._tell(f"worker {rank} has a tenth of its time for 5 s")
            slow = slowed(pid, 10)
            self._for_a_while(rank, 5, lambda: slow.__enter__(), lambda: slow.__exit__(None, None, None))
        return True

    def _tell(self, text: str) -> None:
        self.log.append((time.monotonic() - self._begin, self._job.step, text))
        print(f"{self.log[-1][0]:7.1f} s  step {self.log[-1][1]:6d}  {text}", file=sys.stderr, flush=True)

    def _for_a_while(self, rank: int, seconds: float, begin: Callable[[], object], end: Callable[[], object]) -> None:
        def run() -> None:
            begin()
            time.sleep(seconds)
            end()
            self._busy.discard(rank)

        self._busy.add(rank)
        threading.Thread(target=run).start()


def disturbed(job: Job, rng: random.Random, events: int, steps: int) -> Disturber:
    """Make `events` faults at random steps, and wait for the job's end. Return the source of the faults."""
    job.wait_for(10)
    disturber = Disturber(job, rng)
    for step in sorted(rng.uniform(0.01, 0.92) * steps for _ in range(events)):
        while job.running and (job.step < step or not disturber.disturb()):
            time.sleep(0.2)
    job.process.wait()
    return disturber


def report(job: Job, disturber: Disturber) -> bool:
    """Print the results. Return True if the job ended with 0 and its history shows no violations."""
    from psnode.records.history import violations

    found = violations(job.train_dir)
    print(
        f"exit code {job.process.returncode} after {job.step} steps, {len(disturber.log)} faults; violations: {found or 'none'}\n"
    )
    print("| seconds | step | fault |\n|---:|---:|---|")
    for seconds, step, text in disturber.log:
        print(f"| {seconds:.1f} | {step} | {text} |")
    print("\n| step | rank | told by the job |\n|---:|---:|---|")
    for event in job.events():
        rank = "" if event["rank"] is None else event["rank"]
        print(f"| {event['step']} | {rank} | {event['event']}{': ' if event['reason'] else ''}{event['reason'][:90]} |")
    return not found and job.process.returncode == 0


def accuracy(train_dir: Path) -> str:
    """Return the output of `psnode evaluate` for the last checkpoint."""
    step = (train_dir / "checkpoints" / "latest").read_text().strip().removeprefix("step-")
    line = [sys.executable, "-m", "psnode", "evaluate", "--train-dir", str(train_dir), "--checkpoint", str(int(step))]
    return subprocess.run(line, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Disturb the job, check it, print the results, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", help="of MNIST; without it the embedded digits are taken")
    parser.add_argument("--undisturbed", action="store_true")
    args = parser.parse_args()
    data = ["--dataset", "mnist", "--data-dir", args.data_dir] if args.data_dir else ["--dataset", "digits"]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder) / "run", WORKERS, [*FLAGS, *data, "--max-steps", str(args.steps)], LAUNCH)
        try:
            events = 0 if args.undisturbed else args.events
            disturber = disturbed(job, random.Random(args.seed), events, args.steps)
        finally:
            if job.running:
                job.stop()
        good = report(job, disturber)
        print(f"\n{time.monotonic() - begin:.0f} s; {accuracy(job.train_dir) if good else job.log.read_text()[-3000:]}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
