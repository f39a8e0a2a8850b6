"""Figures of a finished run next to the predictions of a profile, as lines of text or in types that JSON has."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from textwrap import wrap
from typing import Any

from psnode.config.amounts import amount, counted, milliseconds, rate_text
from psnode.jobs.planning.refitting.finished_run import StepFigures
from psnode.jobs.planning.refitting.profile_refit import FITTED, FREE, GIVEN, MEASURED, UNKNOWN, ProfileRefit
from psnode.jobs.planning.routing.routed_groups import USUAL

_ROWS: Mapping[str, str] = {
    "step": "step",
    "passes": "passes of a worker",
    "encode": "coding on a worker",
    "decode": "decoding, of all workers",
    "update": "update, coding of weights",
    "sent": "sent by a worker",
    "received": "received by a worker",
}
_BYTES = ("sent", "received")
_ORIGINS = {
    GIVEN: "carry {}, as given",
    MEASURED: "carry {}, as the run measured them",
    FITTED: "carry {}, with which a step would take the measured time",
    FREE: "cost nothing, since the step is as long without them",
    UNKNOWN: "are unknown, since all ranks shared one host: --rate",
}
_WIDTH = 62


def lines(found: ProfileRefit) -> list[str]:
    """Return an empty line, the lines of the table, and lines that state the origin of each quantity in the refitted profile."""
    run = found.run
    job = f"{counted(run.workers, 'worker')}{_under(run.config.topology)}"
    made = ["", f"{run.path}: {found.name}, {job}, medians of {counted(run.steps, 'step')}"]
    made.append(f"{'':28}{'predicted':>12}{'measured':>12}{'off':>10}")
    for key, words in _ROWS.items():
        before, measured = (getattr(each, key) for each in (found.predicted, run.measured))
        made.append(_row(words, before, measured, in_bytes=key in _BYTES))
    if run.prediction is not None:
        made.append(_row("step, in the run's record", run.prediction.step, run.measured.step))
    made.append(_row("step, refitted", found.refitted.step, run.measured.step))
    made += ["", *_origins(found)]
    return made


def _origins(found: ProfileRefit) -> list[str]:
    """Return lines that state the rate of the links, and the origin of each quantity in the refitted profile."""
    lossy = found.profile.schemes[found.name].lossy
    alike = [name for name, costs in found.profile.schemes.items() if costs.lossy == lossy and name != found.name]
    same = f"; with the same factors those of {', '.join(alike)}" if alike else ""
    rate = found.scenario.rate
    told = {
        "links": _ORIGINS[found.origin].format("any number of bytes at once" if rate is None else rate_text(rate)),
        "from the run": f"passes of all schemes; bytes, coding, decoding and updates of {found.name}{same}"
        if found.run.config.sends_weights
        else f"passes of all schemes; bytes, coding and decoding of {found.name}{same}; updates of dense",
        "as profiled": "bytes of other schemes, DDP's own work, prices of messages, work that belongs to no group",
    }
    if found.run.crowded:
        told["note"] = "all ranks shared one host, so that the seconds of the run contain waits for its cores"
    made = []
    for word, text in told.items():
        made += [f"{head:14}{line}" for head, line in zip_longest([word], wrap(text, _WIDTH), fillvalue="")]
    return made


def _under(topology: str) -> str:
    return "" if topology == USUAL else f", --topology {topology}"


def _row(words: str, predicted: float, measured: float, *, in_bytes: bool = False) -> str:
    text = amount if in_bytes else milliseconds
    return f"  {words:26}{text(predicted):>12}{text(measured):>12}{_off(predicted, measured):>10}"


def _off(predicted: float, measured: float) -> str:
    share = _share(predicted, measured)
    return "" if share is None else f"{100 * share:+.1f} %"


def _share(predicted: float, measured: float) -> float | None:
    """Return the measured figure's relative difference from the predicted one; None if the prediction is 0."""
    return measured / predicted - 1 if predicted else None


def facts(found: ProfileRefit) -> dict[str, Any]:
    """Return the comparison in types that JSON has: seconds, bytes, bit/s, and relative differences."""
    run = found.run
    return {
        "path": str(run.path), "scheme": found.name, "workers": run.workers, "steps": run.steps,
        "rate": found.scenario.rate, "rate_is": found.origin, "one_host": run.crowded,
        "planned": None if run.prediction is None else run.prediction.beside(run.measured.step),
        "predicted": found.predicted._asdict(), "measured": run.measured._asdict(), "refitted": found.refitted._asdict(),
        "off": {key: _share(getattr(found.predicted, key), getattr(run.measured, key)) for key in StepFigures._fields},
    }  # fmt: skip
