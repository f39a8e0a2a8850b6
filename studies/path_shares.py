"""The work that most of a step waits for, as `psnode plan` predicts it and as a timeline shows it, in the same three words.

The critical path of a step is divided into PASSES (the worker's passes and loading of batches), MESSAGES (coding of gradients,
messages in both directions, and decoding of weights on the worker), and MASTER (everything on the rank that updates). Coding on
workers counts as MESSAGES, because a timeline cannot separate the last gradient's coding from its way.
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
    **dict.fromkeys(("other", "load", "forward_backward"), PASSES),
    **dict.fromkeys(("wait", "up", "apply"), MESSAGES),
    **dict.fromkeys(("decode", "update", "downlink", "checkpoint", "between"), MASTER),
}
assert set(_MEASURED) == set(PARTS)


def predicted(spent: Mapping[str, float]) -> str:
    """Return the word for the work with the most seconds in `spent`, the seconds by kind of psnode.jobs.planning.scenario."""
    return _longest(_PREDICTED, spent)


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
    """Return the word with the most seconds. `seconds`: by names; a name that is not in `words` means work of the master."""
    sums = dict.fromkeys((PASSES, MESSAGES, MASTER), 0.0)
    for name, spent in seconds.items():
        sums[words.get(name, MASTER)] += spent
    return max(sums, key=lambda word: sums[word])
