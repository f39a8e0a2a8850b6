"""One process of `python -m studies.widths`: codecs compiled for the processor that the environment names.

    python -m studies.width_process SIZE COPIES SPEC...

The process prints lines of JSON. When everything is compiled, it prints a digest of each codec's payload. Then it reads
requests from standard input, each a line of JSON with SPEC, ACTION and CALLS, and prints for each the nanoseconds of processor
time of a call. The process ends when its input ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import xxhash

from psnode.bench.codecs import SPEEDS, MeasuredCalls, Memory
from psnode.bench.inputs import gaussian
from psnode.bench.yardsticks.bandwidth import read_once
from psnode.bench.yardsticks.timing import timed
from psnode.codecs import get_codec
from psnode.config.plain_json import to_json

READ = "read"  # given in place of a spec: only read the memory


def main(size: int, copies: int, specs: Sequence[str]) -> None:
    """Compile all codecs, then answer requests until the input ends."""
    memory = Memory(gaussian(size), copies)
    memory.targets.fill(0)
    calls = {READ: {READ: lambda: read_once(memory.inputs.take())}}
    digests = {}
    for spec in specs:
        actions = MeasuredCalls(get_codec(spec), memory)
        calls[spec] = {name: getattr(actions, name) for name in SPEEDS}
        for name in ("feedback", "encode", "decode", "decode_add"):  # encode comes after feedback, which overwrites payloads
            calls[spec][name]()
        digests[spec] = xxhash.xxh3_64_hexdigest(b"".join(payload.to_bytes() for payload in actions.payloads))
    print(to_json(digests), flush=True)
    for line in sys.stdin:
        spec, action, count = json.loads(line)
        if action in ("decode", "decode_add"):
            calls[spec]["encode"]()
        print(to_json(timed(calls[spec][action], count)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
