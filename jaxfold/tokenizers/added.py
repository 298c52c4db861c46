"""Added tokens: which pieces of a vocabulary are control tokens, and how they are recognised in a template."""

import re
import unicodedata
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from jaxfold.tokenizers.base import TokenizerError
from jaxfold.tokenizers.matching import Filled
from jaxfold.tokenizers.matching import LongestMatch

_BYTE_PIECE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_MARKUP = frozenset("<>[]{}|｜")
# The categories of the characters that the library takes for a part of a word.
_WORD = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc"})
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token beside the trained vocabulary, with the flags of the `tokenizers` library.

    `special` ones are never shown as text. `lstrip` and `rstrip` swallow the white space beside the token,
    `single_word` asks for no letter beside it, `normalized` looks for it after the text was normalised.
    """

    text: str
    special: bool
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False

    @property
    def control(self) -> bool:
        """True for a token that user text must never produce.

        Special ones are, and the others that look like markup (<think>, [TOOL], <table>). What is left is ordinary
        text that a vocabulary stores as added tokens: runs of spaces and newlines, digits, words.
        """
        if _BYTE_PIECE.fullmatch(self.text):
            return False
        return self.special or (len(self.text) >= 3 and not _MARKUP.isdisjoint(self.text))

    @classmethod
    def read(cls, entry: Any, special: bool = False) -> "AddedToken":
        """A token as the JSON files write it: its text, or an object with `content` and flags."""
        if isinstance(entry, str):
            return cls(entry, special)
        if not isinstance(entry, Mapping) or not isinstance(entry.get("content"), str):
            raise TokenizerError(f"an added token is neither text nor an object with its content: {str(entry)[:80]}")
        flags = {name: bool(entry.get(name, False)) for name in ("single_word", "lstrip", "rstrip")}
        special = special or bool(entry.get("special", False))
        return cls(entry["content"], special, normalized=bool(entry.get("normalized", not special)), **flags)


@dataclass(frozen=True, slots=True)
class Settings:
    """What tokenizer_config.json and its companions say. None: they say nothing."""

    added: tuple[tuple[int | None, AddedToken], ...]
    bos: str | None
    eos: str | None
    unk: str | None
    add_bos: bool | None
    add_eos: bool | None

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Settings":
        """Raises TokenizerError when an entry has a form that these files do not have."""
        added: list[tuple[int | None, AddedToken]] = []
        for token_id, entry in _mapping(config, "added_tokens_decoder").items():
            if not str(token_id).isdecimal():
                raise TokenizerError(f"added_tokens_decoder has the id {token_id!r}, which is no number")
            added.append((int(token_id), AddedToken.read(entry)))
        added.sort(key=lambda item: item[0] or 0)
        known = {token.text for _, token in added}
        extra = [item for item in _mapping(config, "added_tokens").items() if item[0] not in known]
        for text, token_id in sorted(extra, key=lambda item: str(item[1]).zfill(12)):
            if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
                raise TokenizerError(f"added_tokens gives {text!r} the id {token_id!r}, which is no number")
            added.append((token_id, AddedToken(text, special=False)))
        listed = config.get("additional_special_tokens") or config.get("extra_special_tokens") or ()
        listed = listed.values() if isinstance(listed, Mapping) else listed
        names = {name: AddedToken.read(config[name], special=True) for name in _NAMED if config.get(name)}
        added += [(None, token) for token in (*names.values(), *(AddedToken.read(item, True) for item in listed))]
        bos, eos, unk = (names[name].text if name in names else None for name in _NAMED[:3])
        flags = [config.get(name) for name in ("add_bos_token", "add_eos_token")]
        add_bos, add_eos = (flag if isinstance(flag, bool) else None for flag in flags)
        return cls(tuple(added), bos, eos, unk, add_bos, add_eos)


def merge(tokens: Iterable[AddedToken]) -> dict[str, AddedToken]:
    """One token a text, in order of first mention: the last flags hold, and special stays special."""
    merged: dict[str, AddedToken] = {}
    for token in tokens:
        before = merged.get(token.text)
        merged[token.text] = replace(token, special=token.special or (before is not None and before.special))
    return merged


class ControlFinder:
    """Finds control tokens in the template part of a filled template, in the order of the `tokenizers` library:
    first the tokens that are looked for in the text as it stands, then, in what is left, the normalised ones."""

    def __init__(self, tokens: Sequence[AddedToken]) -> None:
        """`tokens` are all added tokens: ordinary ones are matched too, so that overlaps come out alike."""
        self._control = {token.text: token for token in tokens if token.control}
        self._raw = LongestMatch(token.text for token in tokens if not token.normalized)
        self._normalized = LongestMatch(token.text for token in tokens if token.normalized)

    def find(self, filled: Filled) -> list[tuple[int, int, AddedToken]]:
        """Start, end and token of each control token that stands wholly in template text."""
        found: list[tuple[int, int, AddedToken]] = []
        text = filled.text
        for start, end in filled.template:
            at, left = start, 0
            for raw in (*self._raw.spans(text, start, end), (end, end)):
                raw_found = self._accepted(text, raw, 0, len(text))
                # The normalised ones are looked for in what lies between: a token there has no neighbour outside.
                right = raw[0] if raw_found else len(text)
                for span in self._normalized.spans(text, at, raw[0]):
                    found += self._controls(text, span) if self._accepted(text, span, left, right) else []
                if raw_found:
                    found += self._controls(text, raw)
                    left = raw[1]
                at = raw[1]
        return found

    def _accepted(self, text: str, span: tuple[int, int], left: int, right: int) -> bool:
        """Whether this place is a token: not for a single word that has letters beside it in text[left:right]."""
        if span[0] == span[1]:
            return False
        token = self._control.get(text[slice(*span)])
        return token is None or not (token.single_word and _in_word(text, *span, left, right))

    def _controls(self, text: str, span: tuple[int, int]) -> list[tuple[int, int, AddedToken]]:
        token = self._control.get(text[slice(*span)])
        return [] if token is None else [(*span, token)]


def _in_word(text: str, start: int, end: int, left: int, right: int) -> bool:
    """True when a letter, mark, digit or underscore of text[left:right] stands directly beside text[start:end]."""
    beside = text[max(start - 1, left) : start] + text[end : min(end + 1, right)]
    return any(unicodedata.category(char) in _WORD or char in "\u200c\u200d" for char in beside)


def _mapping(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, Mapping):
        raise TokenizerError(f"{name} of the tokenizer's configuration is no object")
    return value
