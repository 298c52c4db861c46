"""What a reply must look like: the grammar that a request asks for, forced tool calls, and reasoning before both."""

import json
import re
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jaxfold.chat.reasoning import ReasoningMarkers
from jaxfold.chat.structured_plain import named_parameters
from jaxfold.chat.structured_schema import SchemaError
from jaxfold.chat.structured_schema import prepare_schema
from jaxfold.chat.tools.format import Syntax
from jaxfold.chat.tools.format import ToolFormat
from jaxfold.chat.types import Constraint
from jaxfold.chat.types import RequestError
from jaxfold.runtime.api import Grammar
from jaxfold.runtime.api import GrammarError
from jaxfold.runtime.api import Grammars
from jaxfold.runtime.api import GrammarSpec
from jaxfold.runtime.api import Thinking
from jaxfold.tokenizers.base import Tokenizer

NO_GRAMMARS = "this server has no grammar engine"
WHITESPACE = 32
"""Most blank characters in a row inside the arguments of a forced call."""
HARMONY_ANSWER = "<|channel|>final<|message|>"
# Gemma's reader takes plain JSON too, and JSON is enforced to the letter.
_STYLES: Mapping[Syntax, str] = MappingProxyType(
    {"json": "json", "qwen_xml": "qwen_xml", "glm_xml": "glm_xml", "dsml": "deepseek_xml", "gemma": "json"}
)


def compiled(grammars: Grammars | None, spec: GrammarSpec, param: str) -> Grammar:
    """The grammar of a request.

    Raises:
        RequestError: with `param` and the reason.
    """
    try:
        if grammars is None:
            raise GrammarError(NO_GRAMMARS)
        return grammars.compile(spec)
    except GrammarError as error:
        raise RequestError(f"{param}: the grammar cannot be enforced: {error}", param) from error


def spec_of(constraint: Constraint) -> GrammarSpec:
    """The grammar that a constraint stands for; a schema is checked for what would not be enforced.

    Raises:
        RequestError: with the constraint's `param`.
    """
    spec, param = constraint.spec, constraint.param
    if spec.kind != "json_schema":
        return spec
    try:
        schema, problems = prepare_schema(json.loads(spec.text))
    except SchemaError as error:
        raise RequestError(f"{param}: the schema cannot be enforced: {error}", param) from error
    if problems:
        first = problems[0]
        raise RequestError(f"{param}: {first.path} is not enforced by this server{_detail(first.reason)}", param)
    return GrammarSpec("json_schema", json.dumps(schema))


@dataclass(frozen=True, slots=True)
class ForcedTool:
    """A tool whose call is forced: its place in the request's `tools`, its name and its schema as it is enforced."""

    place: int
    name: str
    schema: Any


def forced_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[tuple[ForcedTool, ...], tuple[str, ...]]:
    """The tools that a forced call may use, and sentences about what of their schemas is not enforced.

    Raises:
        RequestError: `tools[i]` has a schema that cannot be enforced, or not as a whole though it is `strict`.
    """
    forced: list[ForcedTool] = []
    warnings: list[str] = []
    for place, tool in enumerate(tools):
        function = tool.get("function", tool)
        name, raw = function["name"], function.get("parameters") or {}
        try:
            schema, problems = prepare_schema({"type": "object"} | raw)
        except SchemaError as error:
            raise RequestError(f"tools[{place}]: the schema cannot be enforced: {error}", f"tools[{place}]") from error
        strict = function.get("strict", tool.get("strict")) is True
        for problem in problems:
            said = f"tools[{place}]: {problem.path} is not enforced{_detail(problem.reason)}"
            if strict:
                raise RequestError(said, f"tools[{place}]")
            warnings.append(said)
        forced.append(ForcedTool(place, name, schema))
    return tuple(forced), tuple(warnings)


def call_spec(form: ToolFormat, tools: Sequence[ForcedTool], tokenizer: Tokenizer) -> GrammarSpec:
    """The grammar of one call of one of these tools in this format.

    Control tokens of the format are matched as tokens, since they are not text.
    """
    forced = form.forced
    calls = [
        _sequence(
            [
                *_texts(tool.name + forced.tail, tokenizer),
                *_arguments(forced.syntax, tool.schema, tokenizer),
                # A token that ends the reply is the end of the match itself.
                *(part for part in _texts(forced.end, tokenizer) if part.get("token") not in tokenizer.eos_ids),
            ]
        )
        for tool in tools
    ]
    choice = calls[0] if len(calls) == 1 else {"type": "or", "elements": calls}
    whole = _sequence([*_texts(forced.lead, tokenizer), choice])
    return GrammarSpec("structural_tag", json.dumps({"type": "structural_tag", "format": whole}))


def _arguments(syntax: Syntax, schema: Any, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Parts that match a call's arguments."""
    named = named_parameters(syntax, schema)
    if named is None:
        style = _STYLES[syntax]
        blanks = WHITESPACE if style == "json" else 1
        return [{"type": "json_schema", "style": style, "max_whitespace_cnt": blanks, "json_schema": schema}]
    parts: list[dict[str, Any]] = []
    for required, begin, value, end in named:
        part = _sequence([*_texts(begin, tokenizer), value, *_texts(end, tokenizer)])
        parts.append(part if required else {"type": "optional", "content": part})
    return parts


def thinking_of(
    markers: ReasoningMarkers | None,
    tokenizer: Tokenizer,
    *,
    opened: bool,
    may_open: bool,
    channels: bool,
    constrained: bool,
    budget: int | None,
    param: str,
) -> Thinking | None:
    """How the reasoning before an answer is told by its tokens; None where the answer begins at once.

    `opened`: the prompt ends inside a block; `may_open`: the reply may begin with one. `param` is the field
    that needs to know.

    Raises:
        RequestError: the reasoning does not end with a token of its own, so nobody could say where the answer begins.
    """
    if channels:
        end = tuple(tokenizer.encode(HARMONY_ANSWER, parse_special=True))
        return Thinking(opened=True, start=None, end=end, budget=budget, close=end) if constrained or budget else None
    if markers is None or not (opened or may_open):
        return None
    first = (token for text, token in tokenizer.special_tokens.items() if text and markers.start.startswith(text))
    start = next(first, None) if may_open and not opened else None
    if not opened and start is None:
        return None
    end = tuple(tokenizer.encode(markers.end, parse_special=True))
    if len(end) != 1:
        raise RequestError(
            f"{param} needs reasoning to be off: this model's {markers.end} is not one token, so that the start of the "
            "answer cannot be told",
            param,
        )
    text = "\n" + markers.end + ("" if constrained else "\n\n")
    close = tuple(tokenizer.encode(text, parse_special=True)) if budget else ()
    return Thinking(opened=opened, start=start, end=end, budget=budget, close=close)


def _texts(text: str, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Parts that match `text`: runs of ordinary text and control tokens."""
    known = tokenizer.special_tokens
    control = [one for one, token in known.items() if one and one in text and tokenizer.is_control(token)]
    control.sort(key=len, reverse=True)
    pieces = re.split("(" + "|".join(map(re.escape, control)) + ")", text) if control else [text]
    return [
        {"type": "token", "token": known[piece]} if piece in control else {"type": "const_string", "value": piece}
        for piece in pieces
        if piece
    ]


def _sequence(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return dict(parts[0]) if len(parts) == 1 else {"type": "sequence", "elements": list(parts)}


def _detail(reason: str) -> str:
    return f" ({reason})" if reason else ""
