"""Matrices as sums of rank-one terms: spectra, factorisations, and the draw of terms."""
