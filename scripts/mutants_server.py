"""Server of pytest runs for mutants.py. Each run is a fork of this process, which has imported slow packages once.

The server reads requests (->) from standard input, and writes answers (<-) to standard output. Each is a line of JSON.

-> {"arguments": ["-x", "tests/test_x.py"], "out": "a file for its output"}
<- the id of the process that runs pytest, the leader of a process group
<- the exit code of that process; 1 if it was killed
"""

from __future__ import annotations

import json
import os
import sys

import pytest

if os.path.exists("setup.cfg"):  # a tree that declares no requirements needs none of them
    import numba  # noqa: F401
    import safetensors.torch  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch  # noqa: F401


def run(arguments: list[str], out: str) -> None:
    """Run pytest in this process, as the leader of a new session, and exit with pytest's code. `out`: a file for the output."""
    os.setsid()
    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number, source in enumerate((os.open(os.devnull, os.O_RDONLY), file, file)):
        os.dup2(source, number)
    code = 1
    try:
        code = int(pytest.main(arguments))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Serve requests until standard input ends."""
    for line in sys.stdin:
        given = json.loads(line)
        if not (child := os.fork()):
            run(given["arguments"], given["out"])
        print(child, flush=True)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code if code >= 0 else 1, flush=True)


if __name__ == "__main__":
    main()
