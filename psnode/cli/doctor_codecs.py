"""The check of codecs in `psnode doctor`: each codec encodes, decodes and adds an array.

These are the codecs of all schemes, for both directions. Those of the default scheme come first and are always tried. The
others are tried only as long as time is left, because compiling their kernels may take minutes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

SECONDS = 300.0  # time after which the trial counts as hanging
_BUDGET = 10.0  # seconds after which no further scheme is tried
_SHAPE = (64, 48)
_CLOSE = 1e-5  # tolerance for rounding of float32, relative to the largest value


def program(*, every: bool) -> str:
    """Return the text of a program for `python -c` that tries codecs.

    `every`: True to try all schemes as long as time is left; False to try only the default scheme.
    """
    return f"from psnode.cli.doctor_codecs import main; main({_BUDGET if every else 0})"


def main(budget: float) -> None:
    """Try the codecs. Print a line of JSON before each of them, and one at the end.

    If a codec ends the process, the last line names this codec. `budget`: seconds after which no further scheme is tried.
    """
    from psnode.config.names import DENSE
    from psnode.config.plain_json import to_json
    from psnode.config.schemes import SCHEMES
    from psnode.config.train_settings import DEFAULT_SCHEME

    until = time.monotonic() + budget
    default = SCHEMES[DEFAULT_SCHEME]
    faults: dict[str, str] = {}
    tried: set[str] = set()
    schemes: list[str] = []
    for scheme in (default, *(each for each in SCHEMES.values() if each != default)):
        if schemes and time.monotonic() >= until:
            break
        for spec in (scheme.codec, scheme.downlink):
            if spec not in tried and spec != DENSE:
                print(to_json({"now": spec, "faults": faults}), flush=True)
                tried.add(spec)
                if fault := fault_of(spec):
                    faults[spec] = fault
        schemes.append(scheme.name)
    print(to_json({"now": "", "faults": faults, "schemes": schemes, "all": len(SCHEMES)}), flush=True)


def fault_of(spec: str) -> str:
    """Return a line that describes the fault of the codec with this spec; empty if it has none."""
    try:
        return _fault(spec)
    except Exception as error:  # a broken installation may raise anything
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _fault(spec: str) -> str:
    """Return a description of the fault that a codec shows when it encodes, decodes and adds an array; empty if it shows none.

    The decoded values plus the residual must equal the array, and the decoded values must point in the array's direction.
    """
    import numpy as np

    from psnode.codecs import Payload
    from psnode.codecs.registry import known_codec
    from psnode.codecs.rng import Key

    codec = known_codec(spec)
    x = np.random.default_rng(1).standard_normal(_SHAPE).astype(np.float32)
    kept, total = np.empty_like(x), np.zeros_like(x)
    payload = Payload.from_bytes(codec.encode(x, Key.derive(1, "doctor"), error=kept).to_bytes())
    decoded = codec.decode(payload)
    codec.decode_add(payload, total, 1.0)
    if not np.isfinite(decoded).all():
        return "decodes to values that are not finite"
    if not np.array_equal(total, decoded):
        return "adds values that differ from those it decodes"
    if np.abs(decoded + kept - x).max() > _CLOSE * max(np.abs(each).max() for each in (x, decoded)):
        return "keeps an error that is not that of its values"
    if np.vdot(decoded, x) <= 0:
        return "decodes to values unrelated to those coded"
    return ""


def verdict(found: Mapping[str, Any]) -> tuple[bool, str, str]:
    """Return the result of the check: True if no codec has a fault, a line with details, and a remedy.

    `found`: the last line that `main` printed, with the entry "error" if the process failed.
    """
    faults = dict(found.get("faults", {}))
    if now := found.get("now", ""):
        faults[now] = found.get("error", "ends the process that uses it")
    elif "error" in found:
        faults["none could be tried"] = found["error"]
    if faults:
        remedy = "install the versions that are tested: pip install -c constraints.txt '.[train,mpi]' in a clone of psnode"
        return False, "; ".join(f"{spec}: {fault}" for spec, fault in faults.items()), remedy
    if len(found["schemes"]) == found["all"]:
        return True, f"those of all {found['all']} schemes encode, decode and add", ""
    return True, f"those of {', '.join(found['schemes'])} encode, decode and add; others are compiled on first use", ""
