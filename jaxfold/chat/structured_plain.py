"""Arguments of a forced call in the notations whose values are plain text: one part for each named parameter.

xgrammar has styles of its own for them, which allow blanks around a value; here a string is exactly what stands between
the marks, as the readers of these formats take it.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jaxfold.chat.tools.dsml import MARK
from jaxfold.chat.tools.format import Syntax
from jaxfold.chat.tools.jsontext import dumps
from jaxfold.chat.tools.offer import KINDS

JSON_BLANKS = 32


@dataclass(frozen=True, slots=True)
class Notation:
    """How a parameter is written: `begin` holds {key}; `typed` begins one whose text is JSON, where that is told."""

    begin: str
    end: str
    typed: str

    @property
    def mark(self) -> str:
        """The text that ends a value."""
        return self.end.strip()


NOTATIONS: Mapping[Syntax, Notation] = MappingProxyType(
    {
        "qwen_xml": Notation("<parameter={key}>\n", "\n</parameter>\n", "<parameter={key}>\n"),
        "glm_xml": Notation(
            "<arg_key>{key}</arg_key>\n<arg_value>",
            "</arg_value>\n",
            "<arg_key>{key}</arg_key>\n<arg_value>",
        ),
        "dsml": Notation(
            f'<{MARK}parameter name="{{key}}" string="true">',
            f"</{MARK}parameter>\n",
            f'<{MARK}parameter name="{{key}}" string="false">',
        ),
    }
)


def named_parameters(syntax: Syntax, schema: Any) -> Sequence[tuple[bool, str, Mapping[str, Any], str]] | None:
    """Each parameter of a prepared schema: whether it is required, the text before it, its value, the text after it.

    None where the schema or the notation is not one for that: then xgrammar's own style says what may come.
    """
    notation = NOTATIONS.get(syntax)
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        return None
    properties = schema.get("properties")
    if notation is None or '"#' in dumps(properties):
        return None
    required = schema.get("required", ())
    found = []
    # Whoever names no parameter gets none: free text could not be told from the marks around it.
    for name, value in (properties or {}).items():
        text = _text(value, notation)
        begin = notation.begin if text is not None else notation.typed
        part = text or {"type": "json_schema", "json_schema": value, "max_whitespace_cnt": JSON_BLANKS}
        found.append((name in required, begin.replace("{key}", name), part, notation.end))
    return found


def _text(schema: Any, notation: Notation) -> Mapping[str, Any] | None:
    """What the text of a string may be; None for a parameter of another type."""
    if not isinstance(schema, Mapping):
        return None
    if "enum" in schema:
        if not all(isinstance(value, str) and value for value in schema["enum"]):
            return None
        return {"type": "or", "elements": [{"type": "const_string", "value": value} for value in schema["enum"]]}
    kind = schema.get("type")
    if isinstance(kind, str) and kind in KINDS:
        return None  # the reader takes its text as JSON
    if "pattern" in schema:
        return {"type": "regex", "pattern": schema["pattern"]}
    if "minLength" in schema or "maxLength" in schema:
        return {"type": "regex", "pattern": f"[^<]{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}"}
    return {"type": "grammar", "grammar": text_without(notation.mark)}


def text_without(mark: str) -> str:
    """An EBNF grammar of the texts that do not hold `mark`, character by character: one rule for each part of it.

    (xgrammar's own "any text" is one of bytes, and lets control tokens pass.)
    """
    letters = sorted(set(mark))
    others = "".join(map(_escaped, letters))
    rules = []
    for done in range(len(mark)):
        ways = ['""', f"[^{others}] s0"]
        for letter in letters:
            follows = _longest_start(mark, mark[:done] + letter)
            if follows < len(mark):
                ways.append(f"[{_escaped(letter)}] s{follows}")
        rules.append(f"s{done} ::= {' | '.join(ways)}")
    return "\n".join(["root ::= s0", *rules])


def _longest_start(mark: str, text: str) -> int:
    """How much of the start of `mark` the text ends with."""
    return next(length for length in range(min(len(mark), len(text)), -1, -1) if text.endswith(mark[:length]))


def _escaped(letter: str) -> str:
    return letter if letter.isalnum() else f"\\u{ord(letter):04x}"
