"""Benchmarks of `psnode bench`: each prints a dated result that names the hardware."""
