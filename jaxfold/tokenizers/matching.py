"""Finding words in text, leftmost first and longest first, and putting user text back into a rendered template."""

import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass

from jaxfold.tokenizers.base import TokenizerError


class LongestMatch:
    """Finds a fixed set of words in text: leftmost, then longest, never overlapping.

    Time is linear in the text: a search for the words' first two characters, then one dictionary look-up for each
    length that a word with these characters has.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = frozenset(word for word in words if word)
        lengths: dict[str, set[int]] = {}
        for word in self._words:
            lengths.setdefault(word[:2], set()).add(len(word))
        # A one-letter word is found by its letter alone, so longer words with that letter are tried there too.
        for head in [head for head in lengths if len(head) == 1]:
            for other in [other for other in lengths if other[0] == head]:
                lengths[head] |= lengths[other]
        heads = [head for head in lengths if len(head) == 1 or head[0] not in lengths]
        self._lengths = {head: tuple(sorted(lengths[head], reverse=True)) for head in heads}
        self._heads = re.compile("|".join(re.escape(head) for head in sorted(heads))) if heads else None

    def spans(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Start and end of each match that lies wholly inside text[start:end], in order."""
        if self._heads is None:
            return
        while (head := self._heads.search(text, start, end)) is not None:
            start = head.start()
            for length in self._lengths[head.group()]:
                if start + length <= end and text[start : start + length] in self._words:
                    yield start, start + length
                    start += length
                    break
            else:
                start += 1


@dataclass(frozen=True, slots=True)
class Filled:
    """A rendered template with its user text put back. `template` holds the spans of `text` that are the template's."""

    text: str
    template: tuple[tuple[int, int], ...]


def fill(text: str, literals: Mapping[str, str]) -> Filled:
    """Replaces each marker of `literals` that occurs in `text` by its user text, in one pass.

    Markers inside user text are text. Raises TokenizerError where a text holds half of a surrogate pair.
    """
    pieces: list[str] = []
    template: list[tuple[int, int]] = []
    length = at = 0
    for start, end in (*LongestMatch(literals).spans(text, 0, len(text)), (len(text), len(text))):
        pieces.append(text[at:start])
        if start > at:
            template.append((length, length + start - at))
        pieces.append(literals.get(text[start:end], ""))
        length += start - at + len(pieces[-1])
        at = end
    filled = "".join(pieces)
    check_text(filled)
    return Filled(filled, tuple(template))


def check_text(text: str) -> None:
    """Raises TokenizerError when `text` cannot be written as UTF-8, TypeError when it is no text."""
    try:
        str.encode(text)
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise TokenizerError(
            f"the text holds half of a surrogate pair (U+{code:04X}) at character {error.start}"
        ) from None
