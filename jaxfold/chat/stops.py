"""Stop strings over streamed text: nothing of a stop string, and nothing after it, is ever shown.

The first stop string to be completed wins, and of those that are completed by the same character the longest.  That
rule does not depend on how the text is cut into pieces, so a streamed reply, a whole reply and the engine's own check
all end at the same character.  Each pattern is followed with its failure function (Knuth, Morris, Pratt): a character
costs the same however much text came before, and the memory of a request is bounded by its patterns.
"""

from array import array
from collections.abc import Iterable
from collections.abc import Sequence

from jaxfold.chat.types import RequestError
from jaxfold.tokenizers.base import Detokenizer
from jaxfold.tokenizers.base import Tokenizer

MAX_STOPS = 16
MAX_STOP_CHARS = 1024


def check_stops(stops: Sequence[str], param: str = "stop") -> None:
    """Refuse a list of stop strings that is too long or holds one that is empty or too long.

    Raises:
        RequestError: with `param`.
    """
    if len(stops) > MAX_STOPS:
        raise RequestError(f"{param} must hold at most {MAX_STOPS} strings, not {len(stops)}", param)
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise RequestError(f"{param}: each string must have 1 to {MAX_STOP_CHARS} characters", param)


class StopSet:
    """The compiled stop strings of one request. Immutable: both readers of a reply share it."""

    __slots__ = ("first", "patterns")

    def __init__(self, stops: Iterable[str]) -> None:
        self.patterns = tuple((stop, _failures(stop)) for stop in dict.fromkeys(stops))
        self.first = frozenset(stop[0] for stop, _ in self.patterns)

    def __bool__(self) -> bool:
        return bool(self.patterns)


class StopFilter:
    """One pass over one text. The results of `push` and `flush` concatenate to the text before the first match."""

    __slots__ = ("_held", "_lengths", "_stops", "rest", "stop")

    def __init__(self, stops: StopSet) -> None:
        self._stops = stops
        self._lengths = [0] * len(stops.patterns)
        self._held = ""
        self.stop: str | None = None
        """The string that matched."""
        self.rest = ""
        """What followed the match in the piece that completed it."""

    def push(self, text: str) -> str:
        """The text that is now known to stand before any match; "" after one."""
        if self.stop is not None:
            return ""
        if not self._held and self._stops.first.isdisjoint(text):
            return text
        for at, character in enumerate(text):
            match = self._step(character)
            if match is not None:
                before = self._held + text[: at + 1]
                self.stop, self._held, self.rest = match, "", text[at + 1 :]
                return before[: -len(match)]
        before = self._held + text
        shown = len(before) - max(self._lengths)
        self._held = before[shown:]
        return before[:shown]

    def flush(self) -> str:
        """At the end of the text: the tail that was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> str | None:
        best: str | None = None
        for index, (pattern, failures) in enumerate(self._stops.patterns):
            length = self._lengths[index]
            while length and pattern[length] != character:
                length = failures[length - 1]
            if pattern[length] == character:
                length += 1
            if length == len(pattern):
                if best is None or length > len(best):
                    best = pattern
                length = failures[length - 1]
            self._lengths[index] = length
        return best


class ReplyText:
    """The text of a reply's ids as a client sees it: control tokens and the end token are left out.

    `shown` are control tokens that are text all the same (reasoning markers); with `ignore_eos` the end tokens are too.
    """

    __slots__ = ("_detokenizer", "_hidden", "_keep", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, end_ids: frozenset[int], ignore_eos: bool, shown: frozenset[int]) -> None:
        keep = shown | end_ids if ignore_eos else shown
        self._hidden = frozenset() if ignore_eos else end_ids
        self._keep = keep
        self._tokenizer = tokenizer
        self._detokenizer: Detokenizer = tokenizer.detokenizer(skip_special=True, keep=keep)

    def shows(self, token_id: int) -> bool:
        """Whether the token has a text of its own."""
        return token_id not in self._hidden and (token_id in self._keep or not self._tokenizer.is_control(token_id))

    def push(self, token_id: int) -> str:
        """Text that became certain with this id."""
        return "" if token_id in self._hidden else self._detokenizer.push(token_id)

    def flush(self) -> str:
        return self._detokenizer.flush()


class StopCheck:
    """The engine's `stop_check`: True from the token on that completes a stop string."""

    __slots__ = ("_filter", "_text")

    def __init__(self, text: ReplyText, stops: StopSet) -> None:
        self._text = text
        self._filter = StopFilter(stops)

    def __call__(self, token_id: int) -> bool:
        self._filter.push(self._text.push(token_id))
        return self._filter.stop is not None


def _failures(pattern: str) -> array[int]:
    """Per prefix, the length of its longest proper suffix that is a prefix of the pattern too."""
    failures = array("H", bytes(2 * len(pattern)))
    length = 0
    for at in range(1, len(pattern)):
        while length and pattern[length] != pattern[at]:
            length = failures[length - 1]
        if pattern[length] == pattern[at]:
            length += 1
        failures[at] = length
    return failures
