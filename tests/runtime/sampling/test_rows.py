"""Settings as rows: values, padding, and the limits of what a request may set."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.sampling import rows
from jaxfold.runtime.sampling.rows import bias_arrays
from jaxfold.runtime.sampling.rows import exact_fraction
from jaxfold.runtime.sampling.rows import prepare
from jaxfold.runtime.sampling.rows import rows_from


@given(st.floats(1e-20, 1.0))
def test_top_p_is_an_exact_fraction(top_p):
    mantissa, shift = exact_fraction(top_p)
    assert Fraction(mantissa, 1 << shift) == Fraction(top_p)
    assert mantissa < 1 << 53


def test_rows_hold_the_settings_and_pad_with_invalid_rows():
    first = prepare(SamplingParams(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05), (1 << 64) - 2)
    second = prepare(SamplingParams(repeat_penalty=1.1, penalty_last_n=64), 3)
    built = rows_from([first, second], [100, 7], [5, 2], 4)
    assert built.reals.shape == (4, 6) and built.reals.dtype == np.float64
    assert built.words.shape == (4, 14) and built.words.dtype == np.int64
    np.testing.assert_array_equal(built.words[:, rows.VALID], [1, 1, 0, 0])
    np.testing.assert_array_equal(built.words[:, rows.POSITION], [100, 7, 0, 0])
    np.testing.assert_array_equal(built.words[:, rows.SLOT], [5, 2, 0, 0])
    assert int(built.words[0, rows.SEED].astype(np.uint64)) == (1 << 64) - 2
    assert list(built.words[:2, rows.TOP_K]) == [40, 0]
    assert built.reals[0, rows.LOG_MIN_P] == math.log(0.05)
    assert built.reals[1, rows.LOG_MIN_P] == -math.inf
    assert built.reals[1, rows.REPEAT] == np.float32(1.1)
    assert list(built.words[:2, rows.ADJUSTS]) == [0, 1]
    assert not built.words[:, [rows.COLUMN, rows.DRAFT]].any()
    assert rows_from([], [], [], 2).words.any() == np.False_


def test_a_lane_has_a_row_for_each_of_its_drafts():
    first, second = (prepare(SamplingParams(temperature=t), 3) for t in (0.5, 0.6))
    built = rows_from([first, second], [100, 7], [5, 2], 6, [(), (8, 9)])
    assert list(built.words[:, rows.VALID]) == [1, 1, 1, 1, 0, 0]
    assert list(built.words[:, rows.POSITION]) == [100, 7, 8, 9, 0, 0]
    assert list(built.words[:, rows.SLOT]) == [5, 2, 2, 2, 0, 0]
    assert list(built.words[:, rows.COLUMN]) == [0, 0, 1, 2, 0, 0]
    assert list(built.words[:, rows.DRAFT]) == [0, 0, 8, 9, 0, 0]
    assert list(built.reals[:4, rows.TEMPERATURE]) == [0.5, 0.6, 0.6, 0.6]


@pytest.mark.parametrize(
    ("params", "adjusts"),
    [
        (SamplingParams(), 0),
        (SamplingParams(repeat_penalty=1.1, penalty_last_n=0), 0),
        (SamplingParams(presence_penalty=0.1), 1),
        (SamplingParams(frequency_penalty=-0.1), 1),
        (SamplingParams(logit_bias=((1, 1.0),), penalty_last_n=0), 1),
    ],
)
def test_rows_say_whether_logits_are_adjusted(params, adjusts):
    built = rows_from([prepare(params, 0)], [0], [0], 1)
    assert built.words[0, rows.ADJUSTS] == adjusts


def test_bias_pairs_are_padded_and_the_last_of_an_id_counts():
    ids, values = bias_arrays([(5, 1.0), (9, 2.0), (5, 3.0)], limit=4)
    np.testing.assert_array_equal(ids, [5, 9, -1, -1])
    np.testing.assert_array_equal(values, [3.0, 2.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="at most 4 tokens, not 5"):
        bias_arrays([(token, 1.0) for token in range(5)], limit=4)


@pytest.mark.parametrize("window", [1 << 31, 1 << 63, (1 << 64) - 1, 10**30])
def test_a_window_longer_than_any_reply_is_no_window(window):
    prepared = prepare(SamplingParams(repeat_penalty=1.1, penalty_last_n=window), 0)
    assert np.frombuffer(prepared.words, np.int64)[rows.WINDOW] == (1 << 31) - 1
