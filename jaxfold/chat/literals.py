"""Control tokens that a caller wrote out stay text: they are hidden from the template behind markers.

A marker is a run of Unicode noncharacters, U+FDD0 ... U+FDEF, which no assigned text holds.  The template moves it
around like any other text, and the tokenizer puts the original back as plain text (`encode_rendered`).

What is hidden depends on where the text comes from:

- user turns, tool results, names, tool definitions, call arguments, template settings: every control token, and every
  other added token that is a reasoning marker, that the template itself writes (`<tool_call>`) or that is spelled
  `<|...|>`;
- system and assistant turns: control tokens only, and not the reasoning markers.  A template looks for `</think>` in
  the assistant's history, and a reply sent back must become the tokens that the model wrote.

The first characters of a string that may end such a token, and the last ones that may start it, are hidden as well,
so that two strings side by side, or a string and the template's own text, cannot join to a control token.
"""

import json
import re
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from jaxfold.chat.reasoning import ReasoningMarkers
from jaxfold.chat.types import RequestError
from jaxfold.tokenizers.base import Tokenizer

OPEN, CLOSE = "\ufdd0", "\ufdef"
DIGITS = tuple(map(chr, range(0xFDD1, 0xFDEF)))
MAX_DEPTH = 128
MARKER = re.compile("\ufdd0[\ufdd1-\ufdee]+\ufdef")
# A marker after `repr`, which a template gets where it prints a list or an object without tojson.
ESCAPED_MARKER = re.compile(r"\\ufdd0(?:\\ufd[de][0-9a-f])+?\\ufdef")
RESERVED = (r"[\ufdd0-\ufdef]", r"\\ufdd")
SURROGATE = re.compile("[\ud800-\udfff]")


class TokenPattern:
    """Finds the given tokens in a text, and the edges of a text that may be part of one. Immutable."""

    def __init__(self, tokens: Iterable[str]) -> None:
        texts = sorted(set(tokens))
        self._inside = re.compile("|".join((*RESERVED, *_branches(texts))))
        # Bare letters are left alone: a token that is a word must not hide the first letter of a schema's key.
        heads = (text[:end] for text in texts for end in range(1, len(text)))
        tails = (text[start:] for text in texts for start in range(1, len(text)))
        self._heads = frozenset(head for head in heads if not head.isalnum())
        self._tails = frozenset(tail for tail in tails if not tail.isalnum())
        self._longest = max(map(len, texts), default=1) - 1

    def sub(self, text: str, literals: "Literals") -> str:
        """`text` with every token (the longest at each place) behind a marker."""
        return self._inside.sub(lambda match: literals.marker(match.group()), text)

    def sub_edges(self, text: str, literals: "Literals") -> str:
        """`text` with the longest start that ends a token, and the longest end that starts one, behind markers."""
        sizes = range(min(self._longest, len(text)), 0, -1)
        head = next((size for size in sizes if text[:size] in self._tails), 0)
        tail = next((size for size in sizes if size <= len(text) - head and text[-size:] in self._heads), 0)
        start = literals.marker(text[:head]) if head else ""
        end = literals.marker(text[-tail:]) if tail else ""
        return start + text[head : len(text) - tail] + end


class TokenGuard:
    """The two patterns of one model (see the module's text). Immutable; made once."""

    def __init__(self, tokenizer: Tokenizer, template: str, markers: ReasoningMarkers | None) -> None:
        shown = {} if markers is None else markers.tokens(tokenizer.special_tokens)
        strict: list[str] = []
        control: list[str] = []
        for text, token_id in tokenizer.special_tokens.items():
            if not text.strip(" \t\r\n\u2581"):
                continue  # added tokens for runs of blank space have no authority
            is_control = tokenizer.is_control(token_id)
            if is_control and text not in shown:
                control.append(text)
            if is_control or text in shown or text in template or (text.startswith("<|") and text.endswith("|>")):
                strict.append(text)
        self.strict = TokenPattern(strict)
        self.control = TokenPattern(control)


class Literals:
    """The markers of one rendering: which text stands behind which."""

    def __init__(self, guard: TokenGuard) -> None:
        self._guard = guard
        self._markers: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self.size = 0
        """Characters of all strings hidden so far: what the caller brought."""

    def marker(self, text: str) -> str:
        """The marker that stands for `text`."""
        marker = self._markers.get(text)
        if marker is None:
            number = len(self._markers)
            digits: list[str] = []
            while not digits or number:
                number, digit = divmod(number, len(DIGITS))
                digits.append(DIGITS[digit])
            marker = OPEN + "".join(digits) + CLOSE
            self._markers[text] = marker
            self._texts[marker] = text
        return marker

    def hide(self, text: str, *, own_words: bool = False) -> str:
        """A caller's text, safe to hand to the template. `own_words`: a system or assistant turn."""
        self.size += len(text)
        pattern = self._guard.control if own_words else self._guard.strict
        return pattern.sub_edges(pattern.sub(SURROGATE.sub("\ufffd", text), self), self)

    def hide_value(self, value: Any, param: str, depth: int = 0) -> Any:
        """A caller's JSON value with every string and key hidden.

        Raises:
            RequestError: with `param`, for a value nested deeper than 128 levels.
        """
        if depth > MAX_DEPTH:
            raise RequestError(f"{param} is nested deeper than {MAX_DEPTH} levels", param)
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide(str(key)): self.hide_value(item, param, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_value(item, param, depth + 1) for item in value]
        return value

    def show(self, text: str) -> str:
        """`text` with the markers replaced by what they stand for: to show a person, never to tokenise."""
        return MARKER.sub(lambda match: self._texts.get(match.group(), match.group()), text)

    def to_json(self, value: Any, **options: Any) -> str:
        """JSON of a value that holds markers: what stands behind them is escaped as JSON asks, then hidden again."""
        return self._guard.strict.sub(json.dumps(self._show_value(value), **options), self)

    def unescape(self, text: str) -> str:
        """Markers that `repr` has spelled out become markers again."""
        return ESCAPED_MARKER.sub(lambda match: re.sub(r"\\u(....)", _character, match.group()), text)

    def used(self, text: str) -> dict[str, str]:
        """Marker -> text, for the markers that occur in a rendered prompt."""
        return {marker: self._texts[marker] for marker in set(MARKER.findall(text)) if marker in self._texts}

    def _show_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.show(value)
        if isinstance(value, Mapping):
            return {
                self.show(key) if isinstance(key, str) else key: self._show_value(item) for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._show_value(item) for item in value]
        return value


def _character(match: re.Match[str]) -> str:
    return chr(int(match.group(1), 16))


def _branches(texts: list[str]) -> list[str]:
    """Regular expressions that together match any of the sorted texts, the longest first, with no common prefixes.

    A flat alternation of some thousand tokens would be tried one by one at every `<`; a tree costs a token's length.
    """
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text[0], []).append(text)
    branches: list[str] = []
    for group in groups.values():
        size = len(_common_prefix(group[0], group[-1]))
        rest = [text[size:] for text in group if len(text) > size]
        branch = re.escape(group[0][:size])
        if rest:
            optional = "?" if len(rest) < len(group) else ""
            branch += f"(?:{'|'.join(_branches(rest))}){optional}"
        branches.append(branch)
    return branches


def _common_prefix(left: str, right: str) -> str:
    size = next((at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), None)
    return left if size is None else left[:size]
