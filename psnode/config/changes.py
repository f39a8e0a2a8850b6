"""Differences between the recorded settings of a run and the settings with which the run is resumed."""

from __future__ import annotations

from psnode.config.declaration import Setting
from psnode.config.train_settings import Config, plain, settings


def resume_conflicts(config: Config, saved: Config) -> list[str]:
    """Return one line for every changed setting that must stay the same when a run is resumed, since it defines the job."""
    return [line for setting, line in _changes(config, saved) if not setting.rules.free and not setting.rules.replans]


def plan_changes(config: Config, saved: Config) -> list[str]:
    """Return one line for every changed setting that makes a resumed run get another plan."""
    return [line for setting, line in _changes(config, saved) if setting.rules.replans and config.applies(setting)]


def _changes(config: Config, saved: Config) -> list[tuple[Setting, str]]:
    return [
        (setting, f"{setting.flag} is {plain(getattr(saved, name))} in the checkpoint but {plain(getattr(config, name))} now")
        for name, setting in settings().items()
        if getattr(config, name) != getattr(saved, name)
    ]
