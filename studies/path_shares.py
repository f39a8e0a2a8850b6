"""The work that most of a step waits for, as `psnode plan` predicts it and as a timeline shows it, in the same three words.

The critical path of a step is divided into PASSES (the worker's passes, and loading of batches and weights), MESSAGES (coding of
gradients after the passes, messages in both directions), and MASTER (decoding, updates, and coding of weights). A prediction
counts all coding on workers as MESSAGES, because a timeline cannot separate the last gradient's coding from its way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from psnode.jobs.planning import scenario
from psnode.records.timeline import TIMELINE
from psnode.report.critical import PARTS, means, paths, spans_of

PASSES, MESSAGES, MASTER = "passes", "messages", "master"
_PREDICTED = {
    scenario.PASSES: PASSES,
    scenario.CODING: MESSAGES,
    scenario.TRANSPORT: MESSAGES,
    scenario.LINK: MESSAGES,
    scenario.LATENCY: MESSAGES,
    scenario.MASTER: MASTER,
}
_MEASURED = {
    **dict.fromkeys(("other", "load", "apply", "forward_backward"), PASSES),
    **dict.fromkeys(("wait", "up"), MESSAGES),
    **dict.fromkeys(("decode", "update", "downlink", "checkpoint", "between"), MASTER),
}
assert set(_MEASURED) == set(PARTS)


def predicted(spent: Mapping[str, float]) -> str:
    """Return the word for the work with the most seconds in `spent`, the seconds by kind of psnode.jobs.planning.scenario."""
    return _longest({kind: _PREDICTED[kind] for kind in spent}, spent)


def measured(run: Path, first: int) -> str | None:
    """Return the word for the work that the steps from `first` on waited for most, from the timeline of `run`.

    Returns None if the run has no timeline, or if it has none of these steps from beginning to end.
    """
    if not (run / TIMELINE).exists():
        return None
    events = json.loads((run / TIMELINE).read_bytes())["traceEvents"]
    found = [path for path in paths(spans_of(events)) if path.step >= first]
    return _longest(_MEASURED, means(found)) if found else None


def _longest(words: Mapping[str, str], seconds: Mapping[str, float]) -> str:
    sums = dict.fromkeys((PASSES, MESSAGES, MASTER), 0.0)
    for name, word in words.items():
        sums[word] += seconds.get(name, 0.0)
    return max(sums, key=lambda word: sums[word])
