"""Groups of a predicted job on their routes: their costs, the bytes on the link of every rank, and both as text."""
