"""Messages to bytes and back; bytes that are no message."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from jaxfold.runtime.hosts.frames import FrameError
from jaxfold.runtime.hosts.frames import Kind
from jaxfold.runtime.hosts.frames import Message
from jaxfold.runtime.hosts.frames import decode
from jaxfold.runtime.hosts.frames import encode

ARRAYS = hnp.arrays(
    st.sampled_from([np.int32, np.int64, np.float32, np.float64]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)
MESSAGES = st.builds(
    Message,
    kind=st.sampled_from(Kind),
    numbers=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4).map(tuple),
    text=st.text(max_size=40),
    arrays=st.lists(ARRAYS, max_size=4).map(tuple),
)


@given(MESSAGES)
def test_a_message_comes_back_bit_for_bit(message: Message) -> None:
    found = decode(encode(message))
    assert (found.kind, found.numbers, found.text) == (message.kind, message.numbers, message.text)
    for array, wanted in zip(found.arrays, message.arrays, strict=True):
        assert array.dtype == wanted.dtype and array.shape == wanted.shape
        assert array.tobytes() == wanted.tobytes()


@given(MESSAGES, st.data())
def test_a_message_that_is_cut_or_longer_is_refused(message: Message, data: st.DataObject) -> None:
    payload = encode(message)
    cut = data.draw(st.integers(0, len(payload) - 1))
    for wrong in (payload[:cut], payload + b"\0"):
        with pytest.raises(FrameError):
            decode(wrong)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_refused(payload: bytes) -> None:
    try:
        found = decode(payload)
    except FrameError:
        return
    assert decode(encode(found)).kind is found.kind


def test_a_list_of_python_objects_cannot_be_sent() -> None:
    with pytest.raises(KeyError):
        encode(Message(Kind.STEP, arrays=(np.array([object()]),)))
