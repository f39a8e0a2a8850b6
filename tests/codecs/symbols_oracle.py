"""Readers of the output of ans and rice in plain Python, written from the byte tables; they share no code with psnode."""

from __future__ import annotations

import struct

import numpy as np

from tests.codecs.golden_reader import section, unpack_planes

TOTAL = 1 << 14


def entropy(codes: np.ndarray) -> float:
    """Return the entropy of the empirical distribution, in bits per code."""
    counts = np.unique(codes, return_counts=True)[1] / codes.size
    return float(-(counts * np.log2(counts)).sum())


def packed(data: bytes, count: int, alphabet: int) -> np.ndarray:
    bits = (alphabet - 1).bit_length()
    return unpack_planes(data, count, bits) if bits else np.zeros(count, np.int64)


def frequencies(weights: list[int]) -> list[int]:
    """Return integer frequencies with sum 2^14. Weights whose share of 2^14 is below 1.5 get 1; the others share the rest in
    proportion, by rounding down cumulative sums.
    """
    total = sum(weights)
    small = [2 * TOTAL * weight < 3 * total for weight in weights]
    left, mass = TOTAL - sum(small), sum(weight for weight, one in zip(weights, small, strict=True) if not one)
    result, cumulated = [], 0
    for weight, one in zip(weights, small, strict=True):
        if one:
            result.append(1)
            continue
        result.append((cumulated + weight) * left // mass - cumulated * left // mass)
        cumulated += weight
    assert sum(result) == TOTAL
    return result


def read_section(data: bytes) -> tuple[dict, bytes]:
    kind, count, length = struct.unpack_from("<BIH", data)
    table, weights, at = data[7 : 7 + length], {}, 0
    octets = iter(table)
    for byte in octets:
        if byte:
            weights[at] = (16 + (byte - 1) % 16) << ((byte - 1) // 16)
            at += 1
        else:
            at += next(octets)
    if kind & 2:  # the escape symbol has the lowest number
        weights = {symbol - 1: weight for symbol, weight in weights.items()}
    names, shares = list(weights), frequencies(list(weights.values()))
    if kind & 1:
        names = [(a, b) for a in names for b in names]
        shares = frequencies([f * g for f in shares for g in shares])
    return {"count": count, "pairs": kind & 1, "names": names, "shares": shares}, data[7 + length :]


def read_ans(data: bytes, count: int, alphabet: int) -> np.ndarray:
    if not struct.unpack_from("<I", data)[0]:
        return packed(data[4:], count, alphabet)
    head, rest = section(data)
    states, words = list(struct.unpack_from("<8I", rest)), list(np.frombuffer(rest[32:], "<u2").tolist())
    sections = []
    while sum(part["count"] for part in sections) < count:
        part, head = read_section(head)
        sections.append(part)
    codes: list[int] = []
    for part in sections:
        starts = np.concatenate([[0], np.cumsum(part["shares"])])
        for i in range(part["count"] // 2 if part["pairs"] else part["count"]):
            name = part["names"][0]
            if len(part["names"]) > 1:
                x = states[i % 8]
                slot = x % TOTAL
                k = int(np.searchsorted(starts, slot, side="right")) - 1
                name = part["names"][k]
                x = x // TOTAL * part["shares"][k] + slot - int(starts[k])
                states[i % 8] = x if x >= 1 << 16 else x << 16 | words.pop()
            codes += name if part["pairs"] else [name]
    assert states == [1 << 16] * 8
    assert not words
    escaped = iter(np.frombuffer(head, np.uint8 if alphabet <= 256 else "<u2").tolist())
    codes = [next(escaped) if code < 0 else code for code in codes]
    assert not list(escaped)
    return np.array(codes)


def read_rice(data: bytes, count: int, alphabet: int) -> np.ndarray:
    (bits,) = struct.unpack_from("<I", data)
    if not bits:
        return packed(data[4:], count, alphabet)
    last, k = struct.unpack_from("<HH", data, 4)
    ranks, width = last + 1, 1 if alphabet <= 256 else 2
    end = 8 + -(-ranks * width // 4) * 4
    order = np.frombuffer(data, np.uint8 if width == 1 else "<u2", ranks, 8)
    stream = "".join(f"{byte:08b}"[::-1] for byte in data[end:])
    at, codes = 0, []
    for _ in range(count):
        ones = 0
        while ones < 16 and stream[at + ones] == "1":
            ones += 1
        length = (ranks - 1).bit_length() if ones == 16 else k
        at += ones + (ones < 16)
        low = int(stream[at : at + length][::-1] or "0", 2)
        codes.append(int(order[low if ones == 16 else (ones << k) + low]))
        at += length
    assert at == bits
    assert "1" not in stream[bits:]
    return np.array(codes)
