"""The configuration of a run: its fields, the sources of their values, schemes and schedules."""

from psnode.config.train_settings import Config, settings

__all__ = ["Config", "settings"]
