"""The schemes that a prediction compares, each as the complete settings of a run."""

from __future__ import annotations

from collections.abc import Sequence

from psnode.config import Config, settings
from psnode.config.coding_name import coding_name
from psnode.config.load import load
from psnode.config.resolve import resolve
from psnode.config.schemes import SETTINGS
from psnode.jobs.planning.scheme_flags import scheme_settings

_BASELINES = ("dense", "bf16")
_USUAL = ("qsgd", "topk")


def compared(base: Config, schemes: Sequence[str]) -> dict[str, Config]:
    """Return the compared runs by name: `base` with its own scheme, dense, bf16, and each of `schemes` (default: _USUAL).

    `schemes`: texts as in psnode.jobs.planning.scheme_flags. Settings that belong to the scheme of `base` do not apply to the
    other schemes. Raises ConfigurationError for a scheme that train would refuse, and for a scheme that sets its own
    topology.
    """
    others = {name: getattr(base, name) for name, each in settings().items() if name not in SETTINGS}
    others = {name: value for name, value in others.items() if value != settings()[name].default}
    found = {scheme_name(base): base}
    for flags in (*_BASELINES, *(schemes or _USUAL)):
        own = scheme_settings(flags, fixed=("topology",))
        resolve(load(own, {}))
        found.setdefault(flags, load(others | own, {}))
    return found


def scheme_name(config: Config) -> str:
    """Return the name of a configuration's scheme or, if another codec replaces that of the scheme, the spec of this codec."""
    scheme = resolve(config)
    return coding_name(scheme.name, scheme.codec, replaced=bool(config.codec))
