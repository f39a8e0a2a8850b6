"""Studies: programs that measure, and whose output is a dated page in docs/results. `python -m studies` lists them."""
