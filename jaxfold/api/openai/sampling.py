"""The sampling, length and stop fields that every OpenAI-shaped route shares."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import boolean
from jaxfold.api.http.fields import integer
from jaxfold.api.http.fields import mapping
from jaxfold.api.http.fields import number
from jaxfold.api.http.fields import string
from jaxfold.api.http.fields import to_number
from jaxfold.chat.types import Limits
from jaxfold.chat.types import RequestError
from jaxfold.runtime.api import SamplingParams

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_PENALTY = 2.0
MAX_SALT_CHARS = 256
SEED_LOW = -(1 << 63)
SEED_HIGH = (1 << 64) - 1


def read_sampling(body: Body, defaults: SamplingParams, vocab_size: int) -> SamplingParams:
    """The sampling settings of a request: its own non-null fields on top of `defaults`."""
    asked: dict[str, Any] = {
        "temperature": number(body, "temperature", low=0),
        "top_k": integer(body, "top_k"),
        "top_p": number(body, "top_p", high=1),
        "min_p": number(body, "min_p", low=0, high=1),
        "seed": integer(body, "seed", SEED_LOW, SEED_HIGH),
        "repeat_penalty": _repeat_penalty(body),
        "presence_penalty": number(body, "presence_penalty", -MAX_PENALTY, MAX_PENALTY),
        "frequency_penalty": number(body, "frequency_penalty", -MAX_PENALTY, MAX_PENALTY),
        "penalty_last_n": integer(body, "repeat_last_n", low=-1),
    }
    if asked["top_p"] is not None and asked["top_p"] <= 0:
        raise RequestError("top_p must be above 0 and at most 1, or null", param="top_p")
    if asked["seed"] == -1:
        asked["seed"] = None  # the same as none
    if asked["top_k"] is not None:
        asked["top_k"] = max(0, asked["top_k"])
    if body.get("logit_bias") is not None:
        asked["logit_bias"] = _logit_bias(mapping(body, "logit_bias"), vocab_size)
    return replace(defaults, **{name: value for name, value in asked.items() if value is not None})


def read_limits(body: Body, *names: str) -> Limits:
    """The length limit (the first of `names` that asks for one) and the stop strings of a request."""
    limits = [_token_limit(body, name) for name in names]
    return Limits(
        max_tokens=next((limit for limit in limits if limit is not None), None),
        stop=_stop(body.get("stop")),
        ignore_eos=boolean(body, "ignore_eos"),
    )


def read_background(body: Body) -> bool:
    """True for `priority: "background"`. Any other string or number (as vLLM's clients send) is the foreground."""
    value = body.get("priority")
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    if not (value is None or whole or isinstance(value, str)):
        raise RequestError("priority must be a string, an integer or null", param="priority")
    return value == "background"


def read_cache_salt(body: Body) -> str:
    """The name that keeps prefix reuse apart; "" where none is given."""
    return string(body, "cache_salt", most=MAX_SALT_CHARS) or ""


def check_single_choice(body: Body) -> None:
    """`n` is exactly 1: a second choice would be the first one again, since a reply is a function of its request."""
    value = body.get("n")
    if value is not None and (isinstance(value, bool) or value != 1):
        raise RequestError("n must be 1 or null: this server gives one choice for each prompt", param="n")


def _token_limit(body: Body, name: str) -> int | None:
    value = integer(body, name)
    if value is None or value in (0, -1):
        return None
    if value < 0:
        raise RequestError(f"{name} must be positive; 0, -1 and null mean the server's default", param=name)
    return value


def _repeat_penalty(body: Body) -> float | None:
    """`repeat_penalty`, or vLLM's name for it."""
    values = {name: number(body, name) for name in ("repeat_penalty", "repetition_penalty")}
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in given.items():
        if value <= 0:
            raise RequestError(f"{name} must be above 0, or null", param=name)
    if len(set(given.values())) > 1:
        raise RequestError(
            "repeat_penalty and repetition_penalty are the same setting: send one", param="repetition_penalty"
        )
    return next(iter(given.values()), None)


def _logit_bias(biases: Mapping[str, Any], vocab_size: int) -> tuple[tuple[int, float], ...]:
    param = "logit_bias"
    if len(biases) > MAX_BIASES:
        raise RequestError(f"logit_bias may name at most {MAX_BIASES} tokens", param=param)
    pairs: dict[int, float] = {}
    for key, raw in biases.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 20):
            raise RequestError("logit_bias keys must be token ids written in decimal digits", param=param)
        token = int(key)
        if token >= vocab_size:
            raise RequestError(f"logit_bias names token {token}, but ids end at {vocab_size - 1}", param=param)
        value = None if isinstance(raw, str) else to_number(raw)
        if value is None or abs(value) > MAX_BIAS:
            raise RequestError(f"logit_bias values must be numbers between {-MAX_BIAS:g} and {MAX_BIAS:g}", param=param)
        if token in pairs:
            raise RequestError(f"logit_bias names token {token} twice", param=param)
        pairs[token] = value
    return tuple(sorted(pairs.items()))


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise RequestError("stop must be a string, a list of strings or null", param="stop")
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop may hold at most {MAX_STOPS} strings", param="stop")
    if not all(1 <= len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise RequestError(f"each stop string must have 1 to {MAX_STOP_CHARS} characters", param="stop")
    return tuple(dict.fromkeys(stops))
