"""Schemes: combinations of codec, feedback, aggregator, downlink and learning-rate rule under one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from psnode.config.effects import CLIPPED, DENSE_RATE, rate_notes
from psnode.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Scheme:
    """A combination of codec, feedback rule and aggregator, with its settings, as a paper defines it.

    * codec, feedback, aggregator, downlink: specs, as strings so that the table of schemes needs no imports
    * downlink_lead: the lead of the sent weights over the master's weights, in multiples of the last change of the master's
      weights, unless --downlink-lead is given
    * momentum: momentum of the master's optimizer, unless --momentum or the feedback rule sets it (psnode.config.effects)
    * gathers_decay: True if weight decay enters the momentum like a gradient. If the workers hold the momentum, the master keeps
      a separate momentum of only the weight decay
    * lr: the learning rate, unless --lr is given
    * ratio_warmup: ratios of the sparsifier during the warm-up, each for `ratio_epochs` epochs; empty: no warm-up
    * rule: the paper's rule for the learning rate, as text for users
    """

    name: str
    codec: str
    summary: str
    paper: str
    feedback: str = "none"
    aggregator: str = "mean"
    downlink: str = "dense"
    downlink_lead: float = 0.0
    momentum: float = 0.9
    gathers_decay: bool = True
    lr: float = DENSE_RATE
    ratio_warmup: tuple[float, ...] = ()
    ratio_epochs: float = 1.0
    rule: str = "that of dense SGD"
    aliases: tuple[str, ...] = ()

    def lead(self, asked: float | None) -> float:
        """Return `asked`, the value of --downlink-lead, or the scheme's own lead if `asked` is None.

        The lead says how far the sent weights are ahead of the master's weights, in multiples of the last change of the
        master's weights.
        """
        return self.downlink_lead if asked is None else asked

    @property
    def clips(self) -> bool:
        """True if the master may use only a part of a push. It then informs the worker that sent the push."""
        return self.aggregator == CLIPPED

    def notes(self, lr: float | None) -> tuple[str, ...]:
        """Return notes for the user on the learning rate `lr`; None means the scheme's own rate."""
        return rate_notes(self.name, self.lr, lr)

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved scheme in types that JSON has, as config.json records it."""
        return {name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in _RECORDED}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Scheme:
        """Return the scheme that `to_dict` recorded.

        A field that did not exist when the record was written gets the value that reproduces the behaviour of that time.
        Raises ConfigurationError if a field is missing, unknown or of another type.
        """
        fields = {**BEFORE, **fields}
        if set(fields) != set(_RECORDED):
            raise ConfigurationError(
                f"a recorded scheme has the fields {', '.join(_RECORDED)}, not {', '.join(map(str, fields))}"
            )
        numbers = (int, float)
        kinds: dict[str, tuple[type, ...]] = {"momentum": numbers, "downlink_lead": numbers, "gathers_decay": (bool,)}
        kinds |= {"ratio_epochs": (int, float), "ratio_warmup": (list, tuple)}
        for name, value in fields.items():
            if not isinstance(value, kinds.get(name, (str,))):
                raise ConfigurationError(f"the recorded scheme's {name} is {value!r}")
        return cls(summary="", paper="", **{**fields, "ratio_warmup": tuple(map(float, fields["ratio_warmup"]))})


_RECORDED = (
    "name", "codec", "feedback", "aggregator", "downlink", "downlink_lead", "momentum", "gathers_decay", "ratio_warmup",
    "ratio_epochs",
)  # fmt: skip
# values of fields that older records of schemes lack
BEFORE: Mapping[str, Any] = MappingProxyType({"gathers_decay": False, "downlink_lead": 0.0})
