"""The table of fields: no field is in two places, and nothing that is asked for is silently left out."""

from typing import Any

import pytest

from jaxfold.api.http.known_fields import INERT
from jaxfold.api.http.known_fields import REFUSED
from jaxfold.api.http.known_fields import SUPPORTED
from jaxfold.api.http.known_fields import Route
from jaxfold.api.http.known_fields import check_known_fields
from jaxfold.chat.types import RequestError

ROUTES: tuple[Route, ...] = ("chat", "completions")


def test_every_field_is_in_one_place() -> None:
    for route in ROUTES:
        assert not SUPPORTED[route] & set(INERT)
        assert not SUPPORTED[route] & set(REFUSED[route])
        assert not set(INERT) & set(REFUSED[route])


@pytest.mark.parametrize(("route", "name"), [(route, name) for route in ROUTES for name in sorted(REFUSED[route])])
def test_refused_fields(route: Route, name: str) -> None:
    check_known_fields({name: None}, route)
    for harmless in REFUSED[route][name]:
        check_known_fields({name: harmless}, route)
    for value in ("something", 7, {"a": 1}, ["a"], 0.5):
        with pytest.raises(RequestError) as caught:
            check_known_fields({name: value}, route)
        assert caught.value.param == name
        assert name in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("best_of", True),
        ("store", True),
        ("service_tier", "priority"),
        ("length_penalty", True),
    ],
)
def test_values_that_only_look_harmless(name: str, value: Any) -> None:
    for route in ROUTES:
        with pytest.raises(RequestError) as caught:
            check_known_fields({name: value}, route)
        assert caught.value.param == name


@pytest.mark.parametrize("name", sorted(INERT))
def test_inert_fields_are_checked_and_no_more(name: str) -> None:
    good: dict[type, Any] = {str: "x", dict: {"k": "v"}, bool: False}
    for route in ROUTES:
        for kind in INERT[name]:
            check_known_fields({name: good[kind]}, route)
        check_known_fields({name: None}, route)
        for value in (1, 1.5, [], good[bool] if bool not in INERT[name] else "x"):
            with pytest.raises(RequestError) as caught:
                check_known_fields({name: value}, route)
            assert caught.value.param == name


def test_unknown_fields_are_left_alone() -> None:
    for route in ROUTES:
        check_known_fields({"a_field_of_next_year": {"x": 1}, "temperature": "unchecked here"}, route)
