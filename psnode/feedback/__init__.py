"""Feedback rules: a sender's memories between steps.

A Feedback is a rule without data of its own. Its memories are a State: a dict of flat float32 arrays. The caller owns the
State, saves it in checkpoints and passes it to every push, which updates it in place.
"""

from __future__ import annotations

from psnode.codecs import spec
from psnode.errors import ConfigurationError
from psnode.feedback.compensated import CompensatedQuantisation
from psnode.feedback.error import ErrorFeedback
from psnode.feedback.feedback_rule import Context, Feedback, MomentumRule, State
from psnode.feedback.momentum import LocalMomentum, MomentumCorrection
from psnode.feedback.momentum_average import MomentumAverage
from psnode.feedback.none import NoFeedback

__all__ = ["RULES", "Context", "ErrorFeedback", "Feedback", "MomentumRule", "NoFeedback", "State", "get_feedback"]

RULES: dict[str, type[Feedback]] = {
    rule.id: rule
    for rule in (NoFeedback, ErrorFeedback, CompensatedQuantisation, MomentumCorrection, LocalMomentum, MomentumAverage)
}


def get_feedback(text: str) -> Feedback:
    """Return the rule of a spec such as `ef` or `dgc:momentum=0.9,nesterov=true`.

    Raises ConfigurationError for a text that names no rule. The error names the valid rules.
    """
    wrapped, stages = spec.parse(text)
    if wrapped or len(stages) != 1:
        raise ConfigurationError(f"feedback {text!r} must be one rule: choose from {', '.join(RULES)}")
    if stages[0].id not in RULES:
        raise spec.unknown("feedback", stages[0].id, RULES)
    rule: Feedback = spec.construct(RULES[stages[0].id], stages[0])
    return rule
