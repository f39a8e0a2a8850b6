"""The loops of MinMaxSketch. A cell keeps the least number inserted into it; a query returns the largest of a number's cells.

Source: Jiang, Fu, Yang, Cui, "SketchML: Accelerating distributed machine learning with data sketches", SIGMOD 2018, section 3.3.
"""

from __future__ import annotations

from psnode.codecs.arrays import Bytes, Int64s
from psnode.codecs.kernels.jit import kernel

EMPTY = 255


@kernel
def insert(numbers: Bytes, cells: Int64s, row: Bytes) -> None:
    """Write to row[c] the least of the numbers in cell c, each below EMPTY; 0 if the cell has no number."""
    row[:] = EMPTY
    for i in range(numbers.size):
        row[cells[i]] = min(row[cells[i]], numbers[i])
    for c in range(row.size):
        if row[c] == EMPTY:
            row[c] = 0


@kernel
def query(row: Bytes, cells: Int64s, numbers: Bytes) -> None:
    """Write numbers = max(numbers, row[cells])."""
    for i in range(numbers.size):
        numbers[i] = max(numbers[i], row[cells[i]])


@kernel
def join(labels: Bytes, numbers: Bytes, first: Int64s, ranks: Bytes) -> bool:
    """Write ranks = first[labels] + numbers. Return True if all labels, and the numbers within them, exist.

    `first` has one more entry than there are labels.
    """
    for i in range(labels.size):
        label = labels[i]
        if label >= first.size - 1 or numbers[i] >= first[label + 1] - first[label]:
            return False
        ranks[i] = first[label] + numbers[i]
    return True


@kernel
def split(clusters: Bytes, ranks: Bytes, labels: Bytes, first: Int64s, codes: Bytes, numbers: Bytes) -> None:
    """Write codes = labels[rank] and numbers = rank - first[label], for the rank of every cluster."""
    for i in range(clusters.size):
        rank = ranks[clusters[i]]
        label = labels[rank]
        codes[i] = label
        numbers[i] = rank - first[label]
