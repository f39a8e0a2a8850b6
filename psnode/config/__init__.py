"""The configuration of a run: its fields, where their values come from, schemes and schedules."""

from psnode.config.train_settings import Config, settings

__all__ = ["Config", "settings"]
