"""Decomposition of matrices into sums of rank-one terms, and random sampling of these terms."""
