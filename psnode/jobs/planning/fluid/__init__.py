"""A model of activities that share cores and links: their graph, and the event loop that computes their times."""
