"""The loops of MinMaxSketch. A cell keeps the least number inserted into it. A query returns the largest of the cells of an item.

Source: Jiang, Fu, Yang, Cui, "SketchML: Accelerating distributed machine learning with data sketches", SIGMOD 2018, section 3.3.
"""

from __future__ import annotations

from psnode.codecs.arrays import Bytes, Int64s
from psnode.codecs.kernels.jit import kernel

EMPTY = 255


@kernel
def insert(numbers: Bytes, cells: Int64s, row: Bytes) -> None:
    """Write the least of the numbers in cell c to row[c], or 0 if the cell has no number. Each number must be below EMPTY."""
    row[:] = EMPTY
    for i in range(numbers.size):
        row[cells[i]] = min(row[cells[i]], numbers[i])
    for c in range(row.size):
        if row[c] == EMPTY:
            row[c] = 0


@kernel
def query(row: Bytes, cells: Int64s, numbers: Bytes) -> None:
    """Replace each of `numbers` by row[cell] of its cell if this is larger."""
    for i in range(numbers.size):
        numbers[i] = max(numbers[i], row[cells[i]])


@kernel
def join(labels: Bytes, numbers: Bytes, first: Int64s, ranks: Bytes) -> bool:
    """Write first[labels] + numbers to `ranks`. Return True if every label exists and every number is below its label's size.

    `first` has one entry more than there are labels.
    """
    for i in range(labels.size):
        label = labels[i]
        if label >= first.size - 1 or numbers[i] >= first[label + 1] - first[label]:
            return False
        ranks[i] = first[label] + numbers[i]
    return True


@kernel
def split(clusters: Bytes, ranks: Bytes, labels: Bytes, first: Int64s, codes: Bytes, numbers: Bytes) -> None:
    """Write the label of every coordinate's rank to `codes`, and the rank's number within this label to `numbers`.

    The rank of a coordinate is the rank of its cluster.
    """
    for i in range(clusters.size):
        rank = ranks[clusters[i]]
        label = labels[rank]
        codes[i] = label
        numbers[i] = rank - first[label]
