"""Polar codes for source coding. 32 blocks are coded in parallel, in integer arithmetic that is equal on every machine."""
