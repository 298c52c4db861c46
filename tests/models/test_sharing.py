"""Which heads and columns each device holds, and the rows of a fused weight that follow from it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfold.models.params import Param
from jaxfold.models.params import Run
from jaxfold.models.params import local
from jaxfold.models.params import rows_held
from jaxfold.models.params import stored
from jaxfold.models.sharing import PADDING
from jaxfold.models.sharing import Sharing


@given(kv_heads=st.integers(1, 9), group=st.integers(1, 8), count=st.integers(1, 9))
def test_every_device_can_attend_with_what_it_holds(kv_heads: int, group: int, count: int) -> None:
    sharing = Sharing(count, kv_heads * group, kv_heads)
    heads, kept = sharing.units("heads", sharing.heads), sharing.units("kv_heads", kv_heads)
    assert heads.shape[0] == kept.shape[0] == count and heads.shape[1] % kept.shape[1] == 0
    # Side by side and cut to size, the devices' outputs are in order.
    assert heads.reshape(-1)[: sharing.heads].tolist() == list(range(sharing.heads))
    assert (heads.reshape(-1)[sharing.heads :] == PADDING).all()
    assert set(range(kv_heads)) <= set(kept.reshape(-1).tolist())
    each = heads.shape[1] // kept.shape[1]
    for mine, own in zip(heads, kept, strict=True):
        for place, head in enumerate(mine):
            assert head == PADDING or own[place // each] == head // group, "a query head without its keys"


@given(total=st.integers(1, 300), count=st.integers(1, 9))
def test_columns_are_split_in_order(total: int, count: int) -> None:
    units = Sharing(count).units("mlp", total)
    assert units.reshape(-1)[:total].tolist() == list(range(total))
    assert units.size - total < count * units.shape[1] and (units.reshape(-1)[total:] == PADDING).all()
    assert units.shape == (count, -(-total // count))


@pytest.mark.parametrize(
    ("sharing", "said"),
    [
        (Sharing(2, 8, 4), "4 key-value heads over 2 devices: 2 on each"),
        (Sharing(2, 9, 3), "3 key-value heads over 2 devices: padded to 4"),
        (Sharing(4, 8, 2), "2 key-value heads over 4 devices: each on 2, which share its query heads"),
        (Sharing(2, 7, 1), "1 key-value head over 2 devices: padded to 2"),
    ],
)
def test_how_attention_is_split_is_said(sharing: Sharing, said: str) -> None:
    assert str(sharing) == said


def test_a_device_holds_whole_heads_and_matching_gates() -> None:
    sharing = Sharing(2, 3, 3)
    runs = (Run("heads", 3, 2), Run("kv_heads", 3, 2), Run("kv_heads", 3, 2))
    qkv = rows_held(Param((18, 5), ("heads", "embed"), fused=runs), sharing)
    assert qkv is not None
    assert qkv.reshape(2, 3, 4).tolist() == [
        [[0, 1, 2, 3], [6, 7, 8, 9], [12, 13, 14, 15]],
        [[4, 5, -1, -1], [10, 11, -1, -1], [16, 17, -1, -1]],
    ]
    gates = rows_held(Param((6, 5), ("mlp", "embed"), fused=(Run("mlp", 3), Run("mlp", 3))), sharing)
    assert gates is not None and gates.reshape(2, 2, 2).tolist() == [[[0, 1], [3, 4]], [[2, -1], [5, -1]]]


def test_what_every_device_needs_is_not_split() -> None:
    tree = {"norm": Param((5,), (None,)), "out": Param((5, 4), ("residual", None))}
    sharing = Sharing(2, 4, 2)
    assert rows_held(tree["norm"], sharing) is None and rows_held(tree["out"], Sharing()) is None
    assert [param.shape for param in stored(tree, sharing).values()] == [(5,), (6, 4)]
    assert [param.shape for param in local(tree, sharing).values()] == [(5,), (3, 4)]
    assert np.array_equal(rows_held(tree["out"], sharing), [0, 1, 2, 3, 4, PADDING])
