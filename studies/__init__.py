"""Studies: programs whose output is one dated page of docs/results. `python -m studies` lists them."""
