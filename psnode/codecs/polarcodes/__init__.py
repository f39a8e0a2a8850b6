"""Polar codes for source coding: 32 blocks side by side, in integers, equal on every machine."""
