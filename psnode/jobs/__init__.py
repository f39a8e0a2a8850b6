"""Jobs: roles put together on every rank, started and supervised."""
