"""Prices of a host, which are measured on this one: messages by sockets and by MPI, additions, and neighbours on other cores."""
