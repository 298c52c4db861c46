"""The body of a Responses request to the canonical request, by way of the chat fields that ask for the same."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import boolean
from jaxfold.api.http.fields import mapping
from jaxfold.api.http.fields import sequence
from jaxfold.api.http.fields import string
from jaxfold.api.openai.as_chat import PASSED
from jaxfold.api.openai.as_chat import FieldTable
from jaxfold.api.openai.as_chat import Translated
from jaxfold.api.openai.as_chat import passed_fields
from jaxfold.api.openai.as_chat import refusal
from jaxfold.api.openai.chat import EFFORTS
from jaxfold.api.openai.messages import MAX_MESSAGES
from jaxfold.api.responses.items import read_input
from jaxfold.api.responses.tools import ToolSet
from jaxfold.api.responses.tools import read_choice
from jaxfold.api.responses.tools import read_tools
from jaxfold.api.settings import ApiSettings
from jaxfold.chat.types import Message
from jaxfold.chat.types import RequestError

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
ID_CHARS = 256

FIELDS = FieldTable(
    supported=PASSED
    | {
        "model", "input", "instructions", "max_output_tokens", "tools", "tool_choice", "parallel_tool_calls",
        "reasoning", "text", "stream", "stream_options", "store", "metadata", "previous_response_id", "stop",
        "thinking_budget", "return_token_ids", "include",
    },
    inert=MappingProxyType(
        {
            "user": (str,),
            "safety_identifier": (str,),
            "prompt_cache_key": (str,),
            "prompt_cache_retention": (str,),
            # No tool runs here, so that no number of calls is ever exceeded.
            "max_tool_calls": (int,),
        }
    ),
    refused=MappingProxyType(
        {
            "background": (False,),
            "background_options": ({},),
            "conversation": (),
            "prompt": (),
            "context_management": ([],),
            "truncation": ("disabled",),
            "top_logprobs": (0,),
            "service_tier": ("auto", "default"),
            "prompt_cache_options": ({}, {"mode": "implicit"}),
            "moderation": (),
            "image": ({},),
            "access_programs": ({},),
        }
    ),
)  # fmt: skip

_NAMES = MappingProxyType(
    {
        "max_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning.effort",
        "verbosity": "text.verbosity",
        "response_format.json_schema": "text.format",
        "response_format": "text.format",
        "messages": "input",
    }
)
_SUMMARIES = (None, "auto", "concise", "detailed", "none")
_FORMAT_KEYS = ("name", "description", "schema", "strict")


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A read body. `new` are the messages that it adds to the conversation, without its instructions.

    `dropped` are values of `include` that were left out. `echo` is what the response object repeats of the request.
    """

    chat: Translated
    new: tuple[Message, ...]
    tools: ToolSet
    dropped: tuple[str, ...]
    store: bool
    previous: str | None
    echo: Mapping[str, Any]


def read_previous(body: Body) -> str | None:
    """The id of the response that this one continues."""
    previous = string(body, "previous_response_id", most=ID_CHARS)
    return previous or None


def read_response_request(
    body: Body, settings: ApiSettings, context_length: int, history: tuple[Message, ...]
) -> ResponseRequest:
    """What a Responses body asks for, after the messages of `history`.

    Raises:
        RequestError: 400 with the path of the first field that is wrong.
    """
    fields = passed_fields(body) | {name: body.get(name) for name in ("stop", "thinking_budget")}
    new = read_input(body)
    instructions = string(body, "instructions")
    messages = (*((Message("system", instructions),) if instructions else ()), *history, *new)
    if len(messages) > MAX_MESSAGES:
        raise RequestError(f"a conversation may hold at most {MAX_MESSAGES} messages", param="input")
    drop_hosted = settings.hosted_tools == "drop"
    tools = read_tools(body, drop_hosted=drop_hosted)
    dropped = _include(body, drop_hosted=drop_hosted)
    choice, functions = read_choice(body, tools)
    parallel = boolean(body, "parallel_tool_calls", default=True)
    _check_plain_fields(body)
    fields |= {
        "tools": functions or None,
        "tool_choice": choice,
        "parallel_tool_calls": False if not parallel else None,
        "max_tokens": body.get("max_output_tokens"),
        "reasoning_effort": _effort(body),
    }
    fields |= _text(body)
    used = {name: value for name, value in fields.items() if value is not None}
    default = context_length if settings.default_is_rest else None
    chat = Translated(used, messages, dict(tools.paths) | dict(_NAMES), max_tokens=default)
    previous = read_previous(body)
    store = boolean(body, "store", default=True)
    return ResponseRequest(chat, new, tools, dropped, store, previous, _echo(body, previous))


def _include(body: Body, *, drop_hosted: bool) -> tuple[str, ...]:
    """What `include` asks for: parts of the work that OpenAI's servers do, of which there are none here."""
    include = sequence(body, "include")
    if not all(isinstance(one, str) for one in include):
        raise refusal("include", "must be a list of strings, or null")
    if include and not drop_hosted:
        text = "is not supported: reasoning comes as text; with --hosted-tools drop the server leaves it out"
        raise refusal("include", text)
    return tuple(include[:MAX_METADATA])


def _check_plain_fields(body: Body) -> None:
    """The fields that change nothing of the reply once they are well formed."""
    metadata = mapping(body, "metadata")
    if len(metadata) > MAX_METADATA:
        raise refusal("metadata", f"may hold at most {MAX_METADATA} pairs")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY:
            raise refusal("metadata", f"may hold keys of at most {MAX_METADATA_KEY} characters")
        if not isinstance(value, str) or len(value) > MAX_METADATA_VALUE:
            raise refusal("metadata", f"may hold strings of at most {MAX_METADATA_VALUE} characters")
    for name, value in mapping(body, "stream_options").items():
        path = f"stream_options.{name}"
        if name != "include_obfuscation":
            raise refusal(path, "is not a field of this route: usage comes with the last event")
        if not (value is None or value is False):
            raise refusal(path, "must be false or null: events are not padded here")


def _effort(body: Body) -> str | None:
    reasoning = mapping(body, "reasoning")
    effort = string(reasoning, "effort", path="reasoning.effort")
    if effort is not None and effort not in EFFORTS:
        raise refusal("reasoning.effort", f"must be one of {', '.join(EFFORTS)}")
    for name in ("summary", "generate_summary"):
        if reasoning.get(name) not in _SUMMARIES:
            raise refusal(f"reasoning.{name}", "must be auto, concise, detailed or none")
    for name, harmless in (("context", "auto"), ("mode", "standard")):
        if reasoning.get(name) not in (None, harmless):
            raise refusal(f"reasoning.{name}", "with this value is not supported by this server")
    return effort


def _text(body: Body) -> dict[str, Any]:
    """`text.format` and `text.verbosity` as the chat's fields."""
    text = mapping(body, "text")
    fields: dict[str, Any] = {"verbosity": text.get("verbosity")}
    form = mapping(text, "format", path="text.format")
    kind = "text" if form.get("type") is None else form["type"]
    if kind not in ("text", "json_object", "json_schema"):
        raise refusal("text.format.type", "must be text, json_object or json_schema")
    if kind == "json_object":
        fields["response_format"] = {"type": kind}
    if kind == "json_schema":
        if not isinstance(form.get("schema"), dict):
            raise refusal("text.format.schema", "must be a JSON schema object")
        string(form, "name", path="text.format.name")
        string(form, "description", path="text.format.description")
        if not (form.get("strict") is None or isinstance(form["strict"], bool)):
            raise refusal("text.format.strict", "must be true, false or null")
        inner = {name: form[name] for name in _FORMAT_KEYS if form.get(name) is not None}
        fields["response_format"] = {"type": kind, "json_schema": {"name": "response", **inner}}
    return fields


def _echo(body: Body, previous: str | None) -> dict[str, Any]:
    reasoning = mapping(body, "reasoning")
    return {
        "background": False,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": dict(mapping(body, "metadata")),
        "parallel_tool_calls": boolean(body, "parallel_tool_calls", default=True),
        "previous_response_id": previous,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "store": boolean(body, "store", default=True),
        "text": {"format": {"type": "text"}} | {k: v for k, v in mapping(body, "text").items() if v is not None},
        "tool_choice": "auto" if body.get("tool_choice") is None else body["tool_choice"],
        "tools": list(body.get("tools") or ()),
        "truncation": "disabled",
        "user": body.get("user"),
    }
