"""JSON schemas of request bodies, made from the tables that the parsers go by.

Which fields a route has, and what becomes of them, is in its field table (`known_fields` and its like); the limits are
the parsers' own constants. What is added here is each field's type. A test sends values to both and compares.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from jaxfold.api.anthropic.fields import FIELDS as ANTHROPIC_FIELDS
from jaxfold.api.decisions.questions import MAX_QUESTIONS
from jaxfold.api.embedding_service import MAX_INPUTS
from jaxfold.api.http.known_fields import INERT
from jaxfold.api.http.known_fields import REFUSED
from jaxfold.api.http.known_fields import SUPPORTED
from jaxfold.api.http.known_fields import Route
from jaxfold.api.openai.as_chat import PASSED
from jaxfold.api.openai.as_chat import FieldTable
from jaxfold.api.openai.chat import EFFORTS
from jaxfold.api.openai.completions import MAX_PROMPTS
from jaxfold.api.openai.embeddings import FORMATS
from jaxfold.api.openai.embeddings import REFUSED as EMBEDDINGS_REFUSED
from jaxfold.api.openai.messages import MAX_MESSAGES
from jaxfold.api.openai.messages import MAX_PARTS
from jaxfold.api.openai.messages import MAX_TOOLS
from jaxfold.api.openai.messages import ROLES
from jaxfold.api.openai.sampling import MAX_BIAS
from jaxfold.api.openai.sampling import MAX_BIASES
from jaxfold.api.openai.sampling import MAX_PENALTY
from jaxfold.api.openai.sampling import MAX_SALT_CHARS
from jaxfold.api.openai.sampling import MAX_STOP_CHARS
from jaxfold.api.openai.sampling import MAX_STOPS
from jaxfold.api.openai.sampling import SEED_HIGH
from jaxfold.api.openai.sampling import SEED_LOW
from jaxfold.api.openai.tokenize import MAX_CHARS
from jaxfold.api.openai.tokenize import MAX_TOKENS
from jaxfold.api.responses.fields import FIELDS as RESPONSES_FIELDS
from jaxfold.api.responses.fields import ID_CHARS
from jaxfold.api.responses.fields import MAX_METADATA
from jaxfold.api.responses.fields import MAX_METADATA_KEY
from jaxfold.api.responses.fields import MAX_METADATA_VALUE
from jaxfold.runtime.api import MAX_LOGPROBS

Schema = Mapping[str, Any]

WHOLE_TEXT = "^[+-]?[0-9]{1,40}$"
REAL_TEXT = r"^[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?$"
_TYPES: Mapping[type, str] = MappingProxyType(
    {str: "string", dict: "object", bool: "boolean", list: "array", int: "integer"}
)


def _or_null(*schemas: Schema, about: str = "") -> Schema:
    return {"anyOf": [*schemas, {"type": "null"}], **({"description": about} if about else {})}


def _whole(low: int | None = None, high: int | None = None, about: str = "") -> Schema:
    bounds = {name: bound for name, bound in (("minimum", low), ("maximum", high)) if bound is not None}
    return _or_null({"type": "integer", **bounds}, {"type": "string", "pattern": WHOLE_TEXT}, about=about)


def _real(about: str = "", **bounds: float) -> Schema:
    return _or_null({"type": "number", **bounds}, {"type": "string", "pattern": REAL_TEXT}, about=about)


def _flag(about: str = "") -> Schema:
    return _or_null({"type": "boolean"}, about=about)


def _text(about: str = "", **limits: int) -> Schema:
    return _or_null({"type": "string", **limits}, about=about)


def _object(properties: Mapping[str, Schema], required: Sequence[str] = (), **more: Any) -> Schema:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {}), **more}


_STOP: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_PART: Schema = {
    "oneOf": [
        _object({"type": {"enum": kinds}, key: {"type": "string"}}, ("type", key))
        for kinds, key in ((["text", "input_text", "output_text"], "text"), (["refusal"], "refusal"))
    ]
}
_CALL: Schema = _object(
    {
        "id": _text(),
        "type": {},
        "function": _object(
            {
                "name": {"type": "string", "minLength": 1},
                "arguments": {"description": "JSON text, or an object; what is neither is kept as it is"},
            },
            ("name",),
        ),
    },
    ("function",),
)
_MESSAGE: Schema = _object(
    {
        "role": {"enum": [*ROLES, "function"]},
        "content": _or_null({"type": "string"}, {"type": "array", "items": _PART, "maxItems": MAX_PARTS}),
        "name": _text(),
        "tool_call_id": _text(),
        "tool_calls": _or_null({"type": "array", "items": _CALL}, about="of the assistant"),
        "reasoning_content": _text("of the assistant; also as reasoning or thinking"),
    },
    ("role",),
)
_FUNCTION: Schema = _object(
    {
        "name": {"type": "string", "minLength": 1},
        "description": _text(),
        "parameters": _or_null({"type": "object"}, about="a JSON schema"),
    },
    ("name",),
)
_BARE: Schema = {**_FUNCTION["properties"], "type": {"const": "function"}}
_TOOL: Schema = {
    "anyOf": [
        _object({"type": {"const": "function"}, "function": _FUNCTION}, ("function",)),
        {**_FUNCTION, "not": {"required": ["function"]}, "properties": _BARE},
    ]
}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}

FIELDS: Mapping[str, Schema] = MappingProxyType(
    {
        "model": _text("the served model answers whatever the name, unless the server is strict"),
        "stream": _flag("answer as server-sent events"),
        "stream_options": _or_null(
            _object({"include_usage": _flag(), "continuous_usage_stats": _flag()}), about="only with stream"
        ),
        "temperature": _real("0 is greedy", minimum=0),
        "top_p": _real(exclusiveMinimum=0, maximum=1),
        "top_k": _whole(about="0 and below are off"),
        "min_p": _real(minimum=0, maximum=1),
        "seed": _whole(SEED_LOW, SEED_HIGH, "-1 and null: derived from the prompt"),
        "presence_penalty": _real(minimum=-MAX_PENALTY, maximum=MAX_PENALTY),
        "frequency_penalty": _real(minimum=-MAX_PENALTY, maximum=MAX_PENALTY),
        "repeat_penalty": _real(exclusiveMinimum=0),
        "repetition_penalty": _real("another name of repeat_penalty", exclusiveMinimum=0),
        "repeat_last_n": _whole(-1, about="how many generated tokens the penalties look at; -1: all"),
        "logit_bias": _or_null(
            {
                "type": "object",
                "maxProperties": MAX_BIASES,
                "propertyNames": {"pattern": "^[0-9]{1,19}$"},
                "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
            },
            about="token ids of the model to what is added to their logits",
        ),
        "stop": _or_null(_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}),
        "max_tokens": _whole(-1, about="0, -1 and null: the server's default"),
        "max_completion_tokens": _whole(-1, about="as max_tokens, which wins"),
        "n": _or_null({"const": 1}),
        "ignore_eos": _flag("go on after the model's end token"),
        "priority": _or_null({"type": "string"}, {"type": "integer"}, about='"background" yields to everything else'),
        "draft": _flag("false turns speculative drafts off; the tokens are the same"),
        "cache_salt": _text("prompts are reused only under the same salt", maxLength=MAX_SALT_CHARS),
        "return_token_ids": _flag("the reply's token ids in the block jaxfold"),
        "messages": {"type": "array", "items": _MESSAGE, "minItems": 1, "maxItems": MAX_MESSAGES},
        "tools": _or_null({"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS}),
        "tool_choice": _or_null(
            {"type": "string", "pattern": "^([Aa][Uu][Tt][Oo]|[Nn][Oo][Nn][Ee]|[Rr][Ee][Qq][Uu][Ii][Rr][Ee][Dd])$"},
            {"type": "object"},
            about='"auto", "none", "required", or a function among the tools',
        ),
        "parallel_tool_calls": _flag(),
        "chat_template_kwargs": _or_null({"type": "object"}, about="variables for the chat template"),
        "reasoning_effort": _or_null({"enum": list(EFFORTS)}),
        "think": _flag(),
        "enable_thinking": _flag(),
        "thinking_budget": _whole(0, about="most tokens of reasoning"),
        "logprobs": _flag("the log-probability of each token, at temperature 1 and without filters"),
        "top_logprobs": _whole(0, MAX_LOGPROBS, "with logprobs only"),
        "response_format": _or_null({"type": "object"}),
        "structured_outputs": _or_null({"type": "object"}),
        "guided_json": _or_null({"type": "object"}, {"type": "string"}, {"type": "boolean"}),
        "guided_regex": _text(),
        "guided_choice": _or_null({"type": "array", "items": {"type": "string"}, "minItems": 1}),
        "guided_grammar": _text(),
        "prompt": {
            "anyOf": [
                {"type": "string"},
                _IDS,
                {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS},
                {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
            ],
            "description": "one prompt or several; token ids below the size of the vocabulary",
        },
        "add_special_tokens": _flag("add what the tokenizer adds around a text"),
        "echo": _flag("the prompt before the reply"),
    }
)
"""The type of each supported field. A route may have another type under the same name: `ROUTE_FIELDS`."""

ROUTE_FIELDS: Mapping[Route, Mapping[str, Schema]] = MappingProxyType(
    {
        "chat": {},
        "completions": {"logprobs": _or_null(*_whole(0, MAX_LOGPROBS)["anyOf"][:2], {"const": False})},
    }
)
REQUIRED: Mapping[Route, tuple[str, ...]] = MappingProxyType({"chat": ("messages",), "completions": ("prompt",)})

TOKENIZE: Schema = _object(
    {
        **{name: FIELDS[name] for name in ("model", "tools", "tool_choice", "reasoning_effort")},
        "chat_template_kwargs": FIELDS["chat_template_kwargs"],
        "prompt": _text("a text; or send messages", maxLength=MAX_CHARS),
        "messages": _or_null(FIELDS["messages"]),
        "add_special_tokens": _flag("true unless it says otherwise; of a prompt only"),
        "add_generation_prompt": _flag("true unless it says otherwise; of messages only"),
        "return_token_strs": _flag("the text of each token too"),
    }
)
DETOKENIZE: Schema = _object(
    {
        "model": FIELDS["model"],
        "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": MAX_TOKENS},
    },
    ("tokens",),
)


def embeddings_schema() -> Schema:
    """The body of a request for embeddings."""
    texts = {"type": "string", "minLength": 1}
    lists = ({"type": "array", "items": one, "minItems": 1, "maxItems": MAX_INPUTS} for one in (texts, _IDS))
    own: dict[str, Schema] = {
        "model": FIELDS["model"],
        "input": {
            "anyOf": [texts, _IDS, *lists],
            "description": "a text, several, or token ids with the special tokens around them; never cut",
        },
        "encoding_format": _or_null({"enum": list(FORMATS)}, about="base64 is of little-endian float32"),
        "dimensions": _whole(1, about="keep so many leading numbers, at unit length again"),
    }
    return body_schema(own, INERT, EMBEDDINGS_REFUSED, ("input",))


def body_schema(
    supported: Mapping[str, Schema],
    inert: Mapping[str, tuple[type, ...]],
    refused: Mapping[str, tuple[Any, ...]],
    required: Sequence[str] = (),
) -> Schema:
    """The body of a route with these tables. Fields that are in none of them are ignored, so they are allowed."""
    properties = {name: supported[name] for name in sorted(supported)}
    for name, kinds in sorted(inert.items()):
        if name not in properties:
            properties[name] = _or_null(*({"type": _TYPES[kind]} for kind in kinds), about="has no effect here")
    for name, harmless in sorted(refused.items()):
        if name not in properties:
            properties[name] = {"enum": [*_unique(harmless), None], "description": "not supported: only these values"}
    return _object(properties, required)


def table_schema(table: FieldTable, own: Mapping[str, Schema], required: Sequence[str]) -> Schema:
    """The body of a route of another protocol: its `own` fields, and those that mean what they mean in a chat."""
    passed = {name: FIELDS[name] for name in PASSED & table.supported}
    supported = {**{name: {} for name in table.supported}, **passed, **own}
    return body_schema(supported, table.inert, table.refused, required)


def route_schema(route: Route) -> Schema:
    """The body of a chat or completions request."""
    own = ROUTE_FIELDS[route]
    supported = {name: own.get(name, FIELDS.get(name, {})) for name in SUPPORTED[route]}
    return body_schema(supported, INERT, REFUSED[route], REQUIRED[route])


def _unique(values: Sequence[Any]) -> list[Any]:
    """Without those that JSON cannot tell apart (1 and 1.0)."""
    kept: list[Any] = []
    for value in values:
        if not any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in kept):
            kept.append(value)
    return kept


_BLOCKS: Schema = {"anyOf": [{"type": "string"}, {"type": "array", "items": _object({"type": {"type": "string"}})}]}
MESSAGES: Schema = table_schema(
    ANTHROPIC_FIELDS,
    {
        "model": FIELDS["model"],
        "messages": {
            "type": "array",
            "items": _object(
                {"role": {"enum": ["user", "assistant", "system"]}, "content": _BLOCKS}, ("role", "content")
            ),
            "minItems": 1,
        },
        "system": _or_null(*_BLOCKS["anyOf"]),
        "max_tokens": FIELDS["max_tokens"],
        "stop_sequences": _or_null({"type": "array", "items": _STOP, "maxItems": MAX_STOPS}),
        "stream": FIELDS["stream"],
        "tools": _or_null({"type": "array", "items": {"type": "object"}, "maxItems": MAX_TOOLS}),
        **dict.fromkeys(
            ("tool_choice", "thinking", "output_config", "context_management", "metadata"), _or_null({"type": "object"})
        ),
        "return_token_ids": FIELDS["return_token_ids"],
    },
    ("messages",),
)
RESPONSES: Schema = table_schema(
    RESPONSES_FIELDS,
    {
        "model": FIELDS["model"],
        "input": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}],
            "description": "a text, or messages, calls, their outputs and reasoning",
        },
        "instructions": _text("the system message of this turn"),
        "max_output_tokens": _whole(-1),
        "tools": _or_null({"type": "array", "items": {"type": "object"}}),
        "tool_choice": _or_null({"enum": ["auto", "none", "required"]}, {"type": "object"}),
        "parallel_tool_calls": _flag(),
        "reasoning": _or_null(_object({"effort": FIELDS["reasoning_effort"]})),
        "text": _or_null({"type": "object"}),
        "stream": FIELDS["stream"],
        "stream_options": _or_null({"type": "object"}),
        "store": _flag("keep the response, so that it can be read and continued"),
        "metadata": _or_null(
            {
                "type": "object",
                "maxProperties": MAX_METADATA,
                "propertyNames": {"maxLength": MAX_METADATA_KEY},
                "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE},
            }
        ),
        "previous_response_id": _text("the stored response that this one continues", maxLength=ID_CHARS),
        "stop": FIELDS["stop"],
        "thinking_budget": FIELDS["thinking_budget"],
        "return_token_ids": FIELDS["return_token_ids"],
    },
    ("input",),
)
DECISIONS: Schema = _object(
    {
        "model": FIELDS["model"],
        "input": {
            "anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array"}],
            "description": "what the questions are about; items of a conversation for questions without ids",
        },
        "questions": {
            "type": "array",
            "items": {"type": "object"},
            "minItems": 1,
            "maxItems": MAX_QUESTIONS,
            "description": "choice, score and yes_no with ids, or predicate, choice and score without",
        },
        "temperature": _or_null({"type": "number", "exclusiveMinimum": 0}),
        "chat_template_kwargs": _or_null(_object({"enable_thinking": {"const": False}}, additionalProperties=False)),
        "prompt_format_version": _or_null({"const": 1}),
        "return_prompt_token_ids": _flag(),
        "prompt_cache_key": _text("only for questions without ids"),
        "prompt_cache_options": _or_null({"type": "object"}, about="only for questions without ids"),
        "safety_identifier": _text("only for questions without ids"),
    },
    ("input", "questions"),
    additionalProperties=False,
)
