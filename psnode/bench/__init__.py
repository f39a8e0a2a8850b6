"""Benchmarks of `psnode bench`, whose results name the date and the hardware."""
