"""Feed psnode bytes that nobody meant: scripts/fuzz.py [--runs N] [--codec SPEC] [--seed S] [--coverage DIR] [FILE ...]

Frames of every kind and payloads of every codec are changed, most of them sealed again with right lengths and a right
checksum, and read as a master reads them. Nothing but WireError, CodecError and CheckpointError may come out; a payload that is
refused must not have touched the sum; memory may not grow by more than 256 MiB, and no input may take half a minute.
The first input that breaks a rule is written to fuzz-failure.bin, and the exit code is not 0. --codec: its payloads alone.

Changes are drawn from the seed; with --coverage they are libFuzzer's, led by the coverage of psnode (needs `atheris`),
and inputs that reach something new are added to DIR. FILE: only read these inputs again. An input is one byte, which says what
the rest is (see `Reader`), and the rest.
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
from functools import cache
from pathlib import Path
from types import FunctionType

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what is tried is this checkout

CORPUS = Path(__file__).resolve().parents[1] / "tests" / "corpus"
FAILURE = Path("fuzz-failure.bin")
ROOM_BYTES = 256 << 20
HANG_SECONDS = 30
LARGEST = 1 << 14  # declared coordinates that are decoded; of more than the plan has the master decodes none
JOB = 0x5EED
SHAPES = [(20, 33), (40,), (3,), (9, 4, 3, 3)]
FORMS = [
    "qsgd:levels=1", "qsgd:levels=2,bucket=7,norm=max", "qsgd:levels=255,bucket=100000", "qsgd+zstd", "qsgd:levels=300+zstd",
    "bf16+zstd", "svd+qsgd", "svd:rank=1+fp16+zstd", "topk+qsgd:levels=7", "topk+qsgd+zstd", "randk+bf16", "qsgd+ans",
    "qsgd:levels=1+rice", "lss:bits=3,buckets=0.1+ans", "topk:ratio=0.1+lss+ans", "sketchml:bins=32,rows=0+ans",
    "topk:ratio=0.1+sketchml+ans",
]  # fmt: skip
PAYLOAD, FRAME, RAW, GROUP = range(4)  # what an input is
INTERESTING = [0, 1, 2, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7F800000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def import_psnode() -> None:
    """What is under test, by names of this module."""
    global Codec, Payload, available, get_codec, Key, CheckpointError, CodecError, PsnodeError, WireError, wire, messages
    global parse_events, parse_state
    from psnode import messages, wire
    from psnode.checkpoint import parse as parse_state
    from psnode.codecs import Codec, Payload, available, get_codec
    from psnode.codecs.rng import Key
    from psnode.errors import CheckpointError, CodecError, PsnodeError, WireError
    from psnode.timeline import parse_events


class Reader:
    """Reads inputs as a master or a worker would; `decoded` and `refused` count how they ended.

    The first byte, modulo 4: PAYLOAD a payload; FRAME a frame whose length and checksum are put right first; RAW a frame as it
    is; GROUP a gradient frame with two payloads, which lie in the rest, cut where the first two bytes say.
    """

    def __init__(self) -> None:
        self.decoded = self.refused = 0
        kind, bodies = wire.Kind, messages
        self._bodies: dict[int, Callable[[object], object]] = {
            kind.HELLO: lambda body: bodies.Hello.from_bytes(body, 1),
            kind.CONFIG: lambda body: bodies.Setup.from_bytes(body, 1),
            kind.READY: lambda body: bodies.Ready.from_bytes(body, 1),
            kind.PLAN: lambda body: bodies.Start.from_bytes(body, 1),
            kind.DEAL: lambda body: bodies.Deal.from_bytes(body, 1),
            kind.REPORT: lambda body: bodies.Report.from_bytes(body, 1),
            kind.FAILED: lambda body: bodies.Failure.from_bytes(body, 1),
            kind.STATE: lambda body: parse_state(bytes(body), "the state of rank 1"),
            kind.TRACE: lambda body: parse_events(bytes(body), 1),
        }

    def __call__(self, data: bytes) -> None:
        """Read one input. Whatever is raised is a defect."""
        what, rest = data[0] % 4 if data else PAYLOAD, data[1:]
        try:
            if what == PAYLOAD:
                self._payload(np.frombuffer(rest, np.uint8))
            else:
                frame = _group(rest) if what == GROUP else np.frombuffer(rest, np.uint8).copy()
                self._frame(_sealed(frame) if what == FRAME else frame)
        except WireError as error:
            if what != PAYLOAD and error.source != 1:
                raise AssertionError("the error does not name the sender") from error
            self.refused += 1
        except (CodecError, CheckpointError):
            self.refused += 1
        else:
            self.decoded += 1

    def _frame(self, data: np.ndarray) -> None:
        frame = wire.unpack(data, job=JOB, source=1)
        if frame.kind in (wire.Kind.GRADIENT, wire.Kind.WEIGHTS, wire.Kind.DELTA):
            for part in wire.split_group(frame.body, 2, 1):
                self._payload(part)
        elif frame.kind in self._bodies:
            self._bodies[frame.kind](frame.body)

    def _payload(self, data: np.ndarray) -> None:
        payload = Payload.from_bytes(data)
        if payload.size > LARGEST:
            return
        codec, total = _decoder(payload.stages), np.zeros(payload.size, np.float32)
        with np.errstate(all="ignore"):
            try:
                codec.decode_add(payload, total)
            except CodecError:
                if total.any():
                    raise AssertionError(f"{codec!r} refused a payload and had added a part of it") from None
                raise
            values = codec.decode(payload)
        if values.shape != payload.shape or values.dtype != np.float32:
            raise AssertionError(f"{codec!r} decoded {payload.shape} as {values.dtype} {values.shape}")
        if codec.linear:
            codec.merge([payload, payload])
        support = codec.support(payload)
        if support.size and not 0 <= support.min() <= support.max() < payload.size:
            raise AssertionError(f"{codec!r} names coordinates out of the array")


@cache
def _decoder(stages: tuple[str, ...]) -> Codec:
    """Any codec of these stages decodes what another one with other parameters encoded."""
    name = "+".join(stage for stage in stages if stage != "contractive")
    return get_codec(f"contractive({name})" if "contractive" in stages else name)


def _sealed(frame: np.ndarray) -> np.ndarray:
    if frame.size < wire.HEADER_BYTES:
        return frame
    length = frame.size - wire.HEADER_BYTES
    frame[32:40].view("<u8")[0] = length
    frame[48:52].view("<u4")[0] = wire.checksum(frame)
    return frame


def _group(data: bytes) -> np.ndarray:
    cut = int.from_bytes(data[:2], "little") % (len(data) + 1)
    parts = [data[2 : 2 + cut], data[2 + cut :]]
    frame = wire.GroupFrame(2, sum(wire.padded(len(part)) for part in parts))
    for part in parts:
        frame.room[: len(part)] = np.frombuffer(part, np.uint8)
        frame.take(len(part))
    return frame.seal(wire.Kind.GRADIENT, sender=1, job=JOB, group=0, step=1, version=0)


def forms() -> list[str]:
    """The specs whose payloads are seeds: every codec, further forms and chains, and what makes a contraction of them."""
    plain = [*available(), *FORMS]
    return [*plain, *sorted({repr(get_codec(spec).contractive()) for spec in plain} - {repr(get_codec(spec)) for spec in plain})]


def seeds(specs: list[str]) -> Iterator[bytes]:
    """Valid inputs: payloads of the codecs in several shapes, frames of every kind, gradients of two payloads."""
    made = []
    for spec in specs:
        for shape in SHAPES:
            x = np.asarray(np.random.default_rng(len(made)).standard_normal(shape), np.float32)
            made.append(get_codec(spec).encode(x, Key.derive(3)).to_bytes())
            yield bytes([PAYLOAD]) + made[-1]
    if len(specs) == 1:
        return
    for index in range(0, len(made) - 4, 4):
        first, second = made[index + 1], made[index + 5]
        yield bytes([GROUP]) + len(first).to_bytes(2, "little") + first + second
    for kind, body in _control().items():
        frame = wire.pack(kind, body, sender=1, job=JOB, group=3, step=5, version=4)
        yield bytes([FRAME]) + frame.tobytes()
        yield bytes([RAW]) + frame.tobytes()


def _control() -> dict[int, bytes]:
    import torch

    from psnode.checkpoint import dump

    kind = wire.Kind
    found: dict[int, bytes] = dict.fromkeys(kind, b"SIGTERM")
    found[kind.HELLO] = messages.Hello("host", 7, "1").to_bytes()
    found[kind.CONFIG] = messages.Setup({"lr": 0.1, "seed": 1}, "runs/x", "mark").to_bytes()
    found[kind.READY] = messages.Ready([["a", [3, 4]], ["b", []]], ["b", "a"], 100, True).to_bytes()
    found[kind.PLAN] = messages.Start({"tensors": []}, JOB, 3, 10, 5, None, False).to_bytes()
    found[kind.DEAL] = messages.Deal([1, 3], 5, 2, -1, 10).to_bytes()
    found[kind.REPORT] = messages.Report(0.5, 8, {"top1": 3.0}, 0.1, 0.1, 0.1, None, 12345).to_bytes()
    found[kind.FAILED] = messages.Failure("out of memory", 1).to_bytes()
    found[kind.STATE] = dump({"buffer/mean": torch.ones(3), "feedback/0/residual": torch.zeros(5)})
    found[kind.TRACE] = b'[{"name":"load","ph":"X","pid":1,"tid":"main","ts":1.0,"dur":2.0,"args":{}}]'
    return found


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to four changes: a byte, a bit, a field, a cut, an insertion, a repetition, a shape, nesting."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        size = len(changed)
        at = rng.randrange(1, size) if size > 1 else 1
        match rng.choice((0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 5, 6, 6, 7, 8)):
            case 0 if at < size:
                changed[at] = rng.randrange(256)
            case 1 if at < size:
                changed[at] ^= 1 << rng.randrange(8)
            case 2:
                width = rng.choice((1, 2, 4, 8))
                at -= (at - 1) % width
                value = rng.choice(INTERESTING) if rng.random() < 0.7 else rng.getrandbits(8 * width)
                changed[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
            case 3:
                del changed[at : at + rng.randint(1, 9)]
            case 4:
                changed[at:at] = rng.randbytes(rng.randint(1, 9))
            case 5:
                changed[at:at] = changed[at : at + 16]
            case 6 if size > 9:  # among a payload's stages, dimensions and first fields
                changed[rng.randrange(1, min(size, 24))] = rng.choice(
                    (0, 1, 2, 3, 4, 5, 8, 20, 33, 64, 65, 66, 96, rng.randrange(256))
                )
            case 7:
                del changed[at:]
            case 8:
                changed[at:at] = rng.choice((b"[" * 50, b'{"a":' * 3000, b"NaN", b"1e999", b"-1", b"null", b'"', b"\xff"))
    return bytes(changed)


def watch_memory() -> None:
    """From here on allocations beyond the room fail."""
    used = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (1024 * used + ROOM_BYTES, resource.RLIM_INFINITY))


@contextlib.contextmanager
def last_input() -> Iterator[Callable[[bytes], None]]:
    """Keeps the input under way in a file that outlives a crash of the interpreter; it goes when all went well."""
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
    """Random changes of the seeds and of the corpus."""
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
    """What psnode has loaded and Python interprets; not the kernels, which Numba compiles from bytecode as it is."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "psnode":
            for thing in list(vars(module).values()):
                for member in (thing, *(vars(thing).values() if isinstance(thing, type) else ())):
                    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                    if isinstance(function, FunctionType) and function.__module__ == name:
                        yield function


def run_with_coverage(args: argparse.Namespace) -> int:
    """libFuzzer's loop, from the seeds and what DIR holds."""
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
    """Parse, run, return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=100_000, help="inputs to try")
    parser.add_argument("--seconds", type=float, default=86_400, help="stop after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--codec", metavar="SPEC", help="payloads of this codec alone")
    parser.add_argument("--coverage", type=Path, metavar="DIR", help="let atheris choose the changes")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="inputs to read again")
    args = parser.parse_args()
    import_psnode()
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
