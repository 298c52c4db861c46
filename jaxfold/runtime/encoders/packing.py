"""Which sequences go into which array of rows, and that array itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxfold.models.encoder import Batch

SMALLEST = 32
USUAL = 256
"""Rows that sequences are gathered into: more in one program are hardly faster, and fill up worse."""
PLACES = 64
"""Most sequences of one program."""


def row_counts(context: int, alignment: int) -> tuple[int, ...]:
    """Rows of each program, ascending by factors of two: 32 up to what the longest sequence needs."""
    longest = max(padded(context, alignment), USUAL)
    counts = [SMALLEST]
    while counts[-1] < longest:
        counts.append(counts[-1] * 2)
    return tuple(counts)


def padded(length: int, alignment: int) -> int:
    return -(-length // alignment) * alignment


@dataclass(frozen=True)
class Bin:
    """Sequences that run together, by their index, and the rows of their program."""

    members: tuple[int, ...]
    rows: int


def pack(lengths: Sequence[int], counts: Sequence[int], alignment: int) -> list[Bin]:
    """Every sequence in one bin: the longest first, each into the first bin with room for it.

    A bin has `USUAL` rows, or as many as its first sequence needs; at the end it shrinks to what it holds.
    """
    members: list[list[int]] = []
    used: list[int] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        size = padded(lengths[index], alignment)
        at = next((b for b in range(len(used)) if used[b] + size <= room[b] and len(members[b]) < PLACES), None)
        if at is None:
            at = len(used)
            members.append([])
            used.append(0)
            room.append(max(USUAL, _fitting(size, counts)))
        members[at].append(index)
        used[at] += size
    return [Bin(tuple(held), _fitting(size, counts)) for held, size in zip(members, used, strict=True)]


def fill(sequences: Sequence[Sequence[int]], rows: int, alignment: int) -> Batch:
    """The arrays of one program's call, on the host; the sequences keep their order."""
    columns = {name: np.zeros(rows, np.int32) for name in ("tokens", "position", "begin", "end")}
    first, length = np.zeros(PLACES, np.int32), np.zeros(PLACES, np.int32)
    at = 0
    for place, sequence in enumerate(sequences):
        here = slice(at, at + len(sequence))
        columns["tokens"][here] = sequence
        columns["position"][here] = np.arange(len(sequence))
        columns["begin"][here] = at
        columns["end"][here] = at + len(sequence)
        first[place], length[place] = at, len(sequence)
        at += padded(len(sequence), alignment)
    return Batch(**columns, first=first, length=length)  # type: ignore[arg-type]


def _fitting(rows: int, counts: Sequence[int]) -> int:
    return next(count for count in counts if count >= rows)
