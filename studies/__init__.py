"""Studies: programs that measure, each with a dated page in docs/results as its output. `python -m studies` lists them."""
