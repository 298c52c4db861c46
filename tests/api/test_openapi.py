"""The OpenAPI document agrees with the server: schemathesis sends what it describes, and probes compare every field."""

import copy
import itertools
import re
from collections.abc import Iterator
from typing import Any
from typing import get_args

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck
from hypothesis import Phase
from hypothesis import settings
from schemathesis.specs.openapi.checks import content_type_conformance
from schemathesis.specs.openapi.checks import response_schema_conformance
from schemathesis.specs.openapi.checks import status_code_conformance

from jaxfold.api.access.admission import route_name
from jaxfold.api.access.keys import KeyRing
from jaxfold.api.access.keys import keys_of
from jaxfold.api.app import create_app
from jaxfold.api.exchange.rendering import read_options
from jaxfold.api.http.known_fields import INERT
from jaxfold.api.http.known_fields import REFUSED
from jaxfold.api.http.known_fields import SUPPORTED
from jaxfold.api.http.known_fields import Route
from jaxfold.api.http.known_fields import check_known_fields
from jaxfold.api.openai.chat import read_chat
from jaxfold.api.openai.completions import read_completions
from jaxfold.api.openapi.fields import FIELDS
from jaxfold.api.openapi.fields import route_schema
from jaxfold.api.openapi.routes import ALIASES
from jaxfold.api.openapi.routes import OPERATIONS
from jaxfold.api.openapi.routes import TAGS
from jaxfold.api.openapi.routes import document
from jaxfold.api.openapi.routes import documented_path
from jaxfold.api.settings import ApiSettings
from jaxfold.chat.template import ChatTemplate
from jaxfold.chat.types import RequestError
from tests.api.harness import THINKING
from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import ScriptedEngine

VOCAB = 512
DOCUMENT = document(create_app(None, ApiSettings(model="m")), keyed=False)
NOT_DONE = 501


def without_refused() -> dict[str, Any]:
    """The document without the fields that only exist to be refused: the probes below see to them, much faster."""
    slim = copy.deepcopy(DOCUMENT)
    for one in slim["components"]["schemas"].values():
        properties = one.get("properties", {})
        for name in [name for name, value in properties.items() if "not supported" in value.get("description", "")]:
            del properties[name]
    return slim


schema = schemathesis.openapi.from_dict(without_refused())


@schemathesis.check
def no_failure(ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case) -> None:
    """No 5xx but the one that says, on purpose, that the route does nothing here."""
    assert response.status_code < 500 or response.status_code == NOT_DONE


CHECKS = [no_failure, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def target() -> Iterator[Server]:
    with running(ScriptedEngine(reply_ids("hello")), template=THINKING) as server:
        yield server


@pytest.mark.slow
@schema.parametrize()
@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_what_is_described_is_what_happens(target: Server, case: schemathesis.Case) -> None:
    """No 5xx, documented status codes only, documented types and shapes of replies."""
    response = case.call(base_url=target.url, timeout=30)
    case.validate_response(response, checks=CHECKS)


def test_every_route_is_described() -> None:
    app = create_app(None, ApiSettings(model="m"))
    for rule in app.url_map.iter_rules():
        name = route_name(rule.rule)
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            if not name.startswith(ALIASES):
                assert method.lower() in DOCUMENT["paths"][documented_path(name)], (method, name)
    served = {(method, route_name(rule.rule)) for rule in app.url_map.iter_rules() for method in rule.methods or ()}
    assert set(OPERATIONS) <= served


def test_references_lead_somewhere_and_names_are_unique() -> None:
    names = re.findall(r"#/components/schemas/(\w+)", str(DOCUMENT))
    assert set(names) <= set(DOCUMENT["components"]["schemas"])
    ids = [one["operationId"] for methods in DOCUMENT["paths"].values() for one in methods.values()]
    assert len(set(ids)) == len(ids)


def test_every_supported_field_has_a_type() -> None:
    """A field that a parser reads needs a schema in `openapi_fields.FIELDS`."""
    for route in get_args(Route):
        assert not {name for name in SUPPORTED[route] if not FIELDS.get(name)}
        properties = route_schema(route)["properties"]
        assert set(properties) == SUPPORTED[route] | set(INERT) | set(REFUSED[route])


# Probes: values of every kind, sent to the schema and to the parser.

BASES: dict[Route, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "hi"}]},
    "completions": {"prompt": "hi"},
}
COMPANY: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "logprobs": {},
    "top_logprobs": {"logprobs": True},
    "tool_choice": {"tools": [{"type": "function", "function": {"name": "f"}}]},
}
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    5,
    17,
    -2,
    -3,
    100,
    -100,
    101,
    0.5,
    -0.5,
    1.5,
    3.0,
    1e300,
    10**30,
    -(10**30),
    2**63,
    2**64 - 1,
)
TEXTS = (
    "",
    "x",
    "1",
    "-1",
    "0.5",
    "1e3",
    "auto",
    "None",
    "required",
    "high",
    "none",
    "background",
    "a" * 300,
    "a" * 2000,
)
PROBES: tuple[Any, ...] = (
    None, True, False, *NUMBERS, *TEXTS, [], {}, [1], [""], ["a"], ["a"] * 17, ["a"] * 200, [[1, 2], [3]], [["a"]],
    [{}], [1, "a"], {"a": 1}, {"5": 1}, {"5": 101}, {"5": "1"}, {"-1": 1},
    {"include_usage": True}, {"include_usage": 1},
    {"type": "function", "function": {"name": "f"}}, {"type": "text"}, {"type": "json_object"},
    [{"type": "function", "function": {"name": "f"}}], [{"name": "f"}], [{"name": ""}],
    [{"type": "other", "name": "f"}],
    [{"function": {"name": "f", "parameters": [1]}}], [{"function": {"name": "f", "description": 1}}],
    [{"role": "user", "content": "x"}], [{"role": "nobody", "content": "x"}], [{"role": "user", "content": 1}],
    [{"role": "user"}], [{"role": "user", "content": None}],
    [{"role": "user", "content": [{"type": "text", "text": "x"}]}], [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}],
    [{"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "", "arguments": "{}"}}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}],
    [{"role": "tool", "tool_call_id": 3, "content": "x"}],
)  # fmt: skip
FREE = {"tool_choice", "chat_template_kwargs", "response_format", "structured_outputs", "guided_json", "guided_regex",
        "guided_grammar", "guided_choice"}  # fmt: skip
"""Fields whose objects and texts have rules that a schema does not tell: only what the parser takes is compared."""


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate(THINKING, ByteTokenizer())


def parser_takes(route: Route, body: dict[str, Any], template: ChatTemplate) -> bool:
    try:
        check_known_fields(body, route)
        read_options(body)
        if route == "chat":
            read_chat(body, ApiSettings(model="m"), template, VOCAB)
        else:
            read_completions(body, ApiSettings(model="m"), VOCAB, 1 << 16)
    except RequestError:
        return False
    return True


@pytest.mark.parametrize(
    ("route", "name"),
    [
        (route, name)
        for route in get_args(Route)
        for name in sorted(SUPPORTED[route] | set(INERT) | set(REFUSED[route]))
    ],
)
def test_schema_and_parser_take_the_same_values(route: Route, name: str, template: ChatTemplate) -> None:
    validator = jsonschema_rs.validator_for({"$schema": "https://json-schema.org/draft/2020-12/schema",
                                             **route_schema(route)})  # fmt: skip
    if name == "model":
        return  # any text; which ones are served is the settings' business
    for value in PROBES:
        body = {**BASES[route], **COMPANY.get(name, {}), name: value}
        taken, described = parser_takes(route, body, template), validator.is_valid(body)
        if taken:
            assert described, f"{name}={value!r} is taken, but the schema does not describe it"
        elif described and name not in FREE:
            # A number in a text is described by its form only.
            assert isinstance(value, str), f"{name}={value!r} is described, but the parser refuses it"


def test_the_document_and_its_page_are_served(target: Server) -> None:
    for path in ("/openapi.json", "/v1/openapi.json"):
        answer = target.get(path)
        assert (answer.status, answer.json["openapi"]) == (200, "3.1.0")
    assert answer.json["paths"] == DOCUMENT["paths"]
    page = target.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    text = page.body.decode()
    for path in answer.json["paths"]:
        assert f"<code>{path}</code>" in text
    assert "top_p" in text and "exclusiveMinimum" in text
    # Nothing is fetched from anywhere else, and nothing runs.
    assert not re.findall(r"(?:src|href)=\"(?!/|#)", text) and "<script" not in text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_every_operation_says_what_it_does_and_has_a_place_on_the_page() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            assert operation["tags"][0] in TAGS
            assert operation["summary"] and operation["summary"] != path


def test_the_document_says_whether_keys_are_needed() -> None:
    assert DOCUMENT["security"] == []
    with running(ScriptedEngine(), keys=KeyRing(keys_of(["k"], "cli"))) as server:
        answer = server.request("GET", "/openapi.json", headers={"x-api-key": "k"})
    assert [set(one) for one in answer.json["security"]] == [{"bearer"}, {"header"}]


def test_every_error_is_described_in_the_format_of_its_path() -> None:
    formats = {"/api/chat": "ollamaError", "/v1/messages": "anthropicError", "/v1/completions": "openaiError"}
    for path, name in formats.items():
        responses = DOCUMENT["paths"][path]["post"]["responses"]
        errors = [one for status, one in responses.items() if status != "200"]
        assert len(errors) >= 9
        found = {one["content"]["application/json"]["schema"]["$ref"].split("/")[-1] for one in errors}
        assert found == {name}
    assert "529" in DOCUMENT["paths"]["/v1/messages"]["post"]["responses"]
    assert "429" not in DOCUMENT["paths"]["/v1/messages"]["post"]["responses"]
    assert list(itertools.chain(DOCUMENT["paths"])) == sorted(DOCUMENT["paths"])
