"""The tools of one request by name, and parameters as the types that their schemas give them."""

import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from jaxfold.chat.tools.jsontext import compact
from jaxfold.chat.tools.jsontext import dumps

ANY = "any"
ANY_OBJECT: Mapping[str, Any] = MappingProxyType({"type": "object"})
# How the JSON text of a value of each kind looks. A parameter of any other kind is a string.
KINDS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "array": re.compile(r"\[.*", re.DOTALL),
        "object": re.compile(r"\{.*", re.DOTALL),
        "boolean": re.compile(r"true|false"),
        "integer": re.compile(r"-?[0-9]+(\.0+)?"),
        "number": re.compile(r"-?[0-9].*"),
        "null": re.compile(r"null"),
        ANY: re.compile(r".*", re.DOTALL),
    }
)


class Offer:
    """Immutable. Names are matched without regard to case; where that is not clear the exact name decides."""

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        """`tools` are definitions in OpenAI's form or bare functions."""
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function", tool)
            schema = function.get("parameters")
            self._schemas.setdefault(function["name"], schema if isinstance(schema, Mapping) else ANY_OBJECT)
        self._folded: dict[str, str] = {}
        for name in self._schemas:
            self._folded.setdefault(name.casefold(), name)

    @property
    def names(self) -> Sequence[str]:
        """In the request's order, each once."""
        return tuple(self._schemas)

    def find(self, written: str) -> str | None:
        """The offered name that a reply means, None for a tool that is not offered."""
        return written if written in self._schemas else self._folded.get(written.casefold())

    def schema(self, name: str) -> Mapping[str, Any]:
        """The JSON schema of the arguments of the tool `name`."""
        return self._schemas[name]

    def kind(self, name: str, parameter: str) -> str | None:
        """A key of `KINDS` if the schema gives the parameter that one type; None: it is a string.

        Unions and references are not looked into.
        """
        properties = self._schemas[name].get("properties")
        schema = properties.get(parameter) if isinstance(properties, Mapping) else None
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        return kind if isinstance(kind, str) and kind != ANY and kind in KINDS else None


def typed(text: str, kind: str) -> str:
    """The JSON text of a parameter that a reply wrote as `text`: of the type `kind` where it is one, else a string.

    An object or a list that lacks its last bracket is completed.
    """
    closers = {"array": "]", "object": "}"}.get(kind, "")
    for candidate in (text, text + closers) if closers else (text,):
        value = compact(candidate)
        if value is not None and KINDS[kind].fullmatch(value):
            return value
    return dumps(text)
