"""Feed psnode malformed bytes: scripts/fuzz.py [--runs N] [--codec SPEC] [--seed S] [--coverage DIR] [FILE ...]

Frames of every kind and payloads of every codec are changed. Most of the changed frames then get correct lengths and a correct
checksum. psnode reads the results as a master does. There are four rules: only WireError, CodecError and CheckpointError may be
raised; a payload that is refused must not have changed the sum; memory may not grow by more than 256 MiB; and no input may take
half a minute. The first input that breaks a rule is written to fuzz-failure.bin, and the exit code is not 0. --codec: only
payloads of this codec.

Changes are drawn from the seed. With --coverage, libFuzzer makes the changes, guided by the coverage of psnode (this needs
`atheris`), and adds inputs that reach new code to DIR. FILE: read only these inputs again. For the format of an input see
fuzz_inputs.py.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import mmap
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]  # the tests use this checkout
from fuzz_inputs import forms, mutate, seeds  # noqa: E402
from fuzz_reader import Reader  # noqa: E402

CORPUS = ROOT / "tests" / "corpus"
FAILURE = Path("fuzz-failure.bin")
ROOM_BYTES = 256 << 20
HANG_SECONDS = 30


def watch_memory() -> None:
    """Limit the memory that this process may still allocate to ROOM_BYTES. Allocations above this limit fail."""
    used = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (1024 * used + ROOM_BYTES, resource.RLIM_INFINITY))


@contextlib.contextmanager
def last_input() -> Iterator[Callable[[bytes], None]]:
    """Yield a function that stores the present input in the file FAILURE.

    The file outlives a crash of the interpreter. It is deleted if no error occurs.
    """
    with FAILURE.open("w+b") as file:
        file.truncate(1 << 20)
        with mmap.mmap(file.fileno(), 1 << 20) as memory:
            size = 0

            def remember(data: bytes) -> None:
                nonlocal size
                size = len(data)
                memory[:size] = data

            faulthandler.enable()
            try:
                yield remember
            except BaseException:
                file.truncate(size)
                raise
    FAILURE.unlink()


def run(args: argparse.Namespace) -> int:
    """Let psnode read random changes of the seeds and the corpus, and return the exit code."""
    read, rng = Reader(), random.Random(args.seed)
    pool = [*seeds([args.codec] if args.codec else forms())]
    if not args.codec:
        pool += [path.read_bytes() for path in sorted(CORPUS.glob("*"))]
    for data in pool:
        read(data)
    watch_memory()
    begin, count = time.monotonic(), 0
    with last_input() as remember:
        while count < args.runs and time.monotonic() - begin < args.seconds:
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            for _ in range(min(1000, args.runs - count)):
                data = mutate(rng.choice(pool), rng)
                remember(data)
                read(data)
                count += 1
    faulthandler.cancel_dump_traceback_later()
    seconds = time.monotonic() - begin
    ends = f"{read.decoded} read, {read.refused} refused, nothing else"
    print(f"{args.codec or 'all'}: {count} inputs from seed {args.seed} in {seconds:.0f} s: {ends}")
    return 0


def _functions() -> Iterator[FunctionType]:
    """Yield psnode's functions that Python interprets. Kernels are left out, since Numba needs their unchanged bytecode."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "psnode":
            for thing in list(vars(module).values()):
                for member in (thing, *(vars(thing).values() if isinstance(thing, type) else ())):
                    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                    if isinstance(function, FunctionType) and function.__module__ == name:
                        yield function


def run_with_coverage(args: argparse.Namespace) -> int:
    """Run libFuzzer's loop, which begins with the seeds and the inputs in DIR."""
    import atheris

    read = Reader()
    args.coverage.mkdir(parents=True, exist_ok=True)
    for index, data in enumerate(seeds(forms())):
        (args.coverage / f"seed-{index:03d}").write_bytes(data)
        read(data)
    for function in _functions():
        atheris.instrument_func(function)
    options = [
        f"-runs={args.runs}",
        f"-max_total_time={int(args.seconds)}",
        f"-seed={args.seed + 1}",
        "-max_len=6000",
        "-timeout=30",
    ]
    atheris.Setup([sys.argv[0], *options, "-rss_limit_mb=3000", "-use_value_profile=1", str(args.coverage)], read)
    atheris.Fuzz()
    return 0


def main() -> int:
    """Parse the arguments, run, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=100_000, help="inputs to try")
    parser.add_argument("--seconds", type=float, default=86_400, help="stop after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--codec", metavar="SPEC", help="payloads of this codec alone")
    parser.add_argument("--coverage", type=Path, metavar="DIR", help="let atheris choose the changes")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="inputs to read again")
    args = parser.parse_args()
    if args.coverage:
        return run_with_coverage(args)
    if args.files:
        read = Reader()
        for path in args.files:
            read(path.read_bytes())
        return 0
    try:
        return run(args)
    except Exception:
        traceback.print_exc()
        print(f"the input is in {FAILURE}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
