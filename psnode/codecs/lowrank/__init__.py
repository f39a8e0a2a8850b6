"""Decomposition of matrices into sums of rank-one terms, and sampling of these terms."""
