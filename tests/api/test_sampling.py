"""The fields that every route shares: what each accepts, what each becomes, and that the rest is refused by name."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from jaxfold.api.openai.sampling import MAX_BIASES
from jaxfold.api.openai.sampling import MAX_STOP_CHARS
from jaxfold.api.openai.sampling import MAX_STOPS
from jaxfold.api.openai.sampling import check_single_choice
from jaxfold.api.openai.sampling import read_background
from jaxfold.api.openai.sampling import read_cache_salt
from jaxfold.api.openai.sampling import read_limits
from jaxfold.api.openai.sampling import read_sampling
from jaxfold.chat.types import Limits
from jaxfold.chat.types import RequestError
from jaxfold.runtime.api import SamplingParams

VOCAB = 1000
DEFAULTS = SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=5)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def sampling(**body: Any) -> SamplingParams:
    return read_sampling(body, DEFAULTS, VOCAB)


def limits(**body: Any) -> Limits:
    return read_limits(body, "max_tokens", "max_completion_tokens")


def test_an_empty_body_gets_the_servers_defaults() -> None:
    assert sampling() == DEFAULTS
    assert sampling(temperature=None, top_p=None, top_k=None, seed=None, logit_bias=None) == DEFAULTS
    assert limits() == Limits()


def test_a_seed_of_minus_one_is_the_servers() -> None:
    seeded = replace(DEFAULTS, seed=7)
    assert read_sampling({"seed": -1}, seeded, 512) == read_sampling({}, seeded, 512) == seeded
    assert read_sampling({"seed": 8}, seeded, 512).seed == 8


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"temperature": 0}, "temperature", 0.0),
        ({"temperature": "0.5"}, "temperature", 0.5),
        ({"temperature": 1000}, "temperature", 1000.0),
        ({"top_p": 1}, "top_p", 1.0),
        ({"top_p": "1e-3"}, "top_p", 0.001),
        ({"top_k": 5.0}, "top_k", 5),
        ({"top_k": "7"}, "top_k", 7),
        ({"top_k": -1}, "top_k", 0),
        ({"min_p": 1}, "min_p", 1.0),
        ({"seed": 0}, "seed", 0),
        ({"seed": "12"}, "seed", 12),
        ({"seed": -7}, "seed", -7),
        ({"seed": 2**64 - 1}, "seed", 2**64 - 1),
        ({"repeat_penalty": 1.1}, "repeat_penalty", 1.1),
        ({"repetition_penalty": 1.2}, "repeat_penalty", 1.2),
        ({"repetition_penalty": 1.2, "repeat_penalty": 1.2}, "repeat_penalty", 1.2),
        ({"presence_penalty": -2}, "presence_penalty", -2.0),
        ({"frequency_penalty": 2}, "frequency_penalty", 2.0),
        ({"repeat_last_n": 0}, "penalty_last_n", 0),
        ({"repeat_last_n": -1}, "penalty_last_n", -1),
        ({"logit_bias": {"999": -100, "5": 1}}, "logit_bias", ((5, 1.0), (999, -100.0))),
        ({"logit_bias": {}}, "logit_bias", ()),
    ],
    ids=str,
)
def test_values_that_are_taken(body: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(sampling(**body), field) == value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "1_0"}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
        ({"temperature": "1e999"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": -1}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": "1.5"}, "top_k"),
        ({"top_k": "\u0663"}, "top_k"),
        ({"min_p": -0.01}, "min_p"),
        ({"min_p": 2}, "min_p"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 1e300}, "seed"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repetition_penalty": -1}, "repetition_penalty"),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repetition_penalty"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"logit_bias": {"1000": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999": 5, "AI": -100}}, "logit_bias"),
        ({"logit_bias": {"AI": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"\u00b2": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 100.5}}, "logit_bias"),
        ({"logit_bias": {"1": "5"}}, "logit_bias"),
        ({"logit_bias": {"1": None}}, "logit_bias"),
        ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias"),
        ({"logit_bias": {str(i): 0 for i in range(MAX_BIASES + 1)}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_values_that_are_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        sampling(**body)
    assert caught.value.param == param
    assert caught.value.status == 400
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"max_tokens": 0}, Limits()),
        ({"max_tokens": -1}, Limits()),
        ({"max_tokens": None, "max_completion_tokens": 4}, Limits(max_tokens=4)),
        ({"max_tokens": 0, "max_completion_tokens": 4}, Limits(max_tokens=4)),
        ({"max_tokens": 3, "max_completion_tokens": 4}, Limits(max_tokens=3)),
        ({"max_tokens": "8"}, Limits(max_tokens=8)),
        ({"max_tokens": 10**30}, Limits(max_tokens=10**30)),
        ({"stop": "x"}, Limits(stop=("x",))),
        ({"stop": ["x", "y", "x"]}, Limits(stop=("x", "y"))),
        ({"stop": []}, Limits()),
        ({"stop": ["\U0001f600" * MAX_STOP_CHARS]}, Limits(stop=("\U0001f600" * MAX_STOP_CHARS,))),
        ({"ignore_eos": True}, Limits(ignore_eos=True)),
    ],
    ids=lambda value: str(value)[:50],
)
def test_limits_that_are_taken(body: dict[str, Any], expected: Limits) -> None:
    assert limits(**body) == expected


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_completion_tokens": -5}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": "x"}, "max_completion_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": False}, "stop"),
        ({"stop": ["x"] * (MAX_STOPS + 1)}, "stop"),
        ({"stop": [f"x{i}" for i in range(10_000)]}, "stop"),
        ({"stop": "x" * (MAX_STOP_CHARS + 1)}, "stop"),
        ({"ignore_eos": 1}, "ignore_eos"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_limits_that_are_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        limits(**body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "name",
    [
        "temperature", "top_k", "top_p", "min_p", "seed", "repeat_penalty", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "repeat_last_n", "max_tokens", "max_completion_tokens",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [True, False, "", "x", " 1", "1 ", "0x1", [], [1], {}, {"a": 1}], ids=repr)
def test_numbers_of_the_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        sampling(**{name: value})
        limits(**{name: value})
    assert caught.value.param == name


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(["temperature", "top_k", "top_p", "min_p", "seed", "stop", "logit_bias", "max_tokens"]), JSON_VALUES
)
def test_any_value_is_taken_or_refused_by_name(name: str, value: Any) -> None:
    try:
        assert isinstance(sampling(**{name: value}), SamplingParams)
        assert isinstance(limits(**{name: value}), Limits)
    except RequestError as error:
        assert error.param == name
        assert "\n" not in error.message


@pytest.mark.parametrize("value", [1, 1.0, None])
def test_one_choice(value: Any) -> None:
    check_single_choice({"n": value})


@pytest.mark.parametrize("value", [0, 2, 10**9, True, False, "1", [], {}, -1, 1.5])
def test_any_other_number_of_choices(value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        check_single_choice({"n": value})
    assert caught.value.param == "n"


@pytest.mark.parametrize(("value", "background"), [("background", True), ("default", False), (0, False), (None, False)])
def test_priority(value: Any, background: bool) -> None:
    assert read_background({"priority": value}) is background


@pytest.mark.parametrize("value", [True, 1.5, [], {}])
def test_priority_of_the_wrong_type(value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        read_background({"priority": value})
    assert caught.value.param == "priority"


def test_cache_salt() -> None:
    assert read_cache_salt({}) == ""
    assert read_cache_salt({"cache_salt": "tenant"}) == "tenant"
    for value in (1, ["x"], "x" * 257):
        with pytest.raises(RequestError) as caught:
            read_cache_salt({"cache_salt": value})
        assert caught.value.param == "cache_salt"
