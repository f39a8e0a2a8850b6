"""Polar codes for source coding: 32 blocks side by side, in integer arithmetic that is equal on every machine."""
