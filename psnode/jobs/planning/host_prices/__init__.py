"""Measured prices on this host: messages through sockets and MPI, additions, and the slowdown of a core while others work."""
