"""Jobs: the roles of every rank, started and supervised."""
