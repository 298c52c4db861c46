"""Packing: every sequence once, no bin overfull, and arrays that say where each one lies."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxfold.runtime.encoders.packing import PLACES
from jaxfold.runtime.encoders.packing import USUAL
from jaxfold.runtime.encoders.packing import fill
from jaxfold.runtime.encoders.packing import pack
from jaxfold.runtime.encoders.packing import padded
from jaxfold.runtime.encoders.packing import row_counts

ALIGNMENTS = st.sampled_from([1, 16])


@given(context=st.integers(1, 9000), alignment=ALIGNMENTS)
def test_the_longest_text_fits_the_last_program(context: int, alignment: int) -> None:
    counts = row_counts(context, alignment)
    assert counts[0] == 32 and counts[-1] >= max(padded(context, alignment), USUAL)
    assert all(b == 2 * a for a, b in pairwise(counts))
    assert counts[-1] // 2 < max(padded(context, alignment), USUAL)


@given(lengths=st.lists(st.integers(1, 700), min_size=1, max_size=150), alignment=ALIGNMENTS)
def test_every_sequence_has_one_place(lengths: list[int], alignment: int) -> None:
    counts = row_counts(700, alignment)
    bins = pack(lengths, counts, alignment)
    assert sorted(index for one in bins for index in one.members) == list(range(len(lengths)))
    for one in bins:
        used = sum(padded(lengths[index], alignment) for index in one.members)
        assert used <= one.rows and one.rows in counts and len(one.members) <= PLACES
        # A smaller program would not have held them, and only a long sequence has a larger one than usual.
        assert one.rows == counts[0] or used > one.rows // 2
        assert one.rows <= USUAL or max(lengths[index] for index in one.members) > USUAL - alignment


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8), alignment=ALIGNMENTS)
def test_the_arrays_say_where_each_sequence_lies(lengths: list[int], alignment: int) -> None:
    sequences = [list(range(100 * i, 100 * i + length)) for i, length in enumerate(lengths)]
    batch = fill(sequences, 256, alignment)
    first, length = np.asarray(batch.first), np.asarray(batch.length)
    assert length.tolist() == lengths + [0] * (PLACES - len(lengths))
    for i, sequence in enumerate(sequences):
        rows = slice(first[i], first[i] + length[i])
        assert first[i] % alignment == 0
        assert np.asarray(batch.tokens)[rows].tolist() == sequence
        assert np.asarray(batch.position)[rows].tolist() == list(range(len(sequence)))
        assert set(np.asarray(batch.begin)[rows]) == {first[i]}
        assert set(np.asarray(batch.end)[rows]) == {first[i] + length[i]}
    padding = np.asarray(batch.end) == 0
    assert padding.sum() == 256 - sum(lengths)
    assert not np.asarray(batch.begin)[padding].any()
