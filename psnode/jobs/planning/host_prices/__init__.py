"""Measured prices on this host: messages through sockets and MPI, additions, and the slowdown by work on other cores."""
