"""Table of the times for which a job pauses after a fault, in Markdown: scripts/reaction.py

Four workers train LeNet on the embedded digits. One worker gets SIGSTOP, and another one gets SIGKILL. With five emulated hosts
(scripts/netlab.sh --hosts 5 --rate none -- python scripts/reaction.py) the link of one worker is also cut. The table has the
time from each fault to the first step that finishes without the disturbed worker, according to the job's records.

Then, under kofn with k = 3 of 4, the script measures the rate of finished steps in six turns. In every second turn a worker is
slowed to a tenth of its speed, and the rates with and without this are compared. The exit code is 1 if a bound is missed. The
bounds are 2 s after SIGKILL, the deadline plus 1 s after SIGSTOP and after a cut, and 90 % of the undisturbed rate.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
from running import Job, cut, host_port, mend, send, slowed  # noqa: E402

WORKERS = 4
FLAGS = ["--batch-size", "8", "--lr", "0.005", "--threads", "1", "--no-tensorboard", "--eval-freq", "0", "--hash-every", "0"]
FLAGS += ["--max-steps", "1000000"]


def standstill(job: Job, fault: Callable[[], None]) -> float:
    """Cause a fault, and return the seconds until a step is recorded without the disturbed worker.

    Such a step has fewer gradients than the last step before the fault.
    """
    before = job.last()["contributing"]
    begin = time.monotonic()
    fault()
    while job.last()["contributing"] >= before:
        if time.monotonic() > begin + 120:
            raise SystemExit(f"no step is finished without it\n{job.log.read_text()[-2000:]}")
        time.sleep(0.002)
    return time.monotonic() - begin


def whole_again(job: Job, workers: int) -> float:
    """Return the seconds until a step contains the gradients of all `workers` workers, or 60 if this takes longer."""
    begin = time.monotonic()
    while job.last()["contributing"] < workers and time.monotonic() < begin + 60:
        time.sleep(0.01)
    return time.monotonic() - begin


def faults(folder: Path, deadline: float) -> bool:
    """Measure the pauses after SIGSTOP, SIGKILL and, on emulated hosts, a cut link. Return True if they are within the bounds."""
    job = Job(folder / "faults", WORKERS, [*FLAGS, "--deadline", str(deadline)], ["--kill-after", "5"])
    job.wait_for(30)
    ranks, rows = job.ranks(), list[tuple[str, float, float, str]]()
    usual = 1 / job.rate(3)
    taken = standstill(job, lambda: send(ranks[2], signal.SIGSTOP))
    send(ranks[2], signal.SIGCONT)
    rows.append((f"SIGSTOP of 1 of {WORKERS}", taken, deadline + 1, f"{whole_again(job, WORKERS):.2f} s after SIGCONT"))
    if port := host_port(3):
        taken = standstill(job, lambda: cut(port))
        mend(port)
        rows.append((f"link of 1 of {WORKERS} cut", taken, deadline + 1, f"{whole_again(job, WORKERS):.2f} s after its end"))
    job.wait_for(job.step + 10)
    rows.append((f"SIGKILL of 1 of {WORKERS}", standstill(job, lambda: send(ranks[4], signal.SIGKILL)), 2.0, ""))
    rows.append(("SIGSTOP of 1 of 3", standstill(job, lambda: send(ranks[1], signal.SIGSTOP)), deadline + 1, ""))
    send(ranks[1], signal.SIGCONT)
    begin = time.monotonic()
    code = job.stop()
    ended = f"ended with {code} after {time.monotonic() - begin:.1f} s"
    print(f"a step takes {1e3 * usual:.0f} ms; --deadline {deadline:g}; TERM: {ended}\n")
    print("| fault | seconds to the first step without it | bound | back in a step |\n|---|---:|---:|---|")
    for what, seconds, bound, back in rows:
        print(f"| {what} | {seconds:.2f} | {bound:g} | {back} |")
    return all(seconds <= bound for _, seconds, bound, _ in rows) and code == 75


def slow_worker(folder: Path, seconds: float) -> bool:
    """Measure the rate of steps under kofn with and without a slowed worker, in turns.

    Return True if at least 90 % of the rate is kept.
    """
    flags = [*FLAGS, "--consistency", "kofn", "--num-aggregate", str(WORKERS - 1)]
    job = Job(folder / "slow", WORKERS, flags, ["--kill-after", "5"])
    job.wait_for(30)
    pid, alone, beside = job.ranks()[2], list[float](), list[float]()
    for _ in range(3):
        alone.append(job.rate(seconds))
        with slowed(pid, 10):
            beside.append(job.rate(seconds))
    job.stop()
    share = median(beside) / median(alone)
    print(f"\nkofn, {WORKERS - 1} of {WORKERS}, {os.cpu_count()} cores: steps a second undisturbed {_shown(alone)}")
    print(f"with a worker slowed 10x {_shown(beside)}: {100 * share:.0f} %")
    return share >= 0.9


def _shown(rates: list[float]) -> str:
    return ", ".join(f"{rate:.1f}" for rate in rates)


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--deadline", type=float, default=2.0, help="seconds [2]")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn under kofn; 0: without that part [5]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        good = faults(Path(name), args.deadline)
        if args.seconds:
            good = slow_worker(Path(name), args.seconds) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
