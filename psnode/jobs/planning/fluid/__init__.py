"""Activities that share cores and links: their graph, and the event loop that finds their times."""
