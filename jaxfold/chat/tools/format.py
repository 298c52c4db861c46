"""What a tool format is: how it begins, how it is read, how it is written, and what forces it."""

import re
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import ClassVar
from typing import Literal

from jaxfold.chat.tools.jsoncall import read_bare
from jaxfold.chat.tools.jsontext import dumps
from jaxfold.chat.tools.reading import Reading
from jaxfold.chat.tools.source import Work
from jaxfold.chat.tools.source import overlap

# Longest name of a tool or a parameter, in characters.
MAX_NAME = 512
LONGEST_OPENER = 64

Syntax = Literal["json", "qwen_xml", "glm_xml", "dsml", "gemma"]


@dataclass(frozen=True, slots=True)
class ForcedCall:
    """How the server begins a call in the model's stead: `lead`, a tool's name, `tail`, then arguments in `syntax`.

    The arguments are the model's, within the tool's JSON schema; `end` completes the call.
    """

    lead: str
    tail: str
    end: str
    syntax: Syntax = "json"

    def opening(self, name: str) -> str:
        """The text up to the arguments of a call of `name`."""
        return self.lead + name + self.tail


class Openers:
    """The texts that begin a call."""

    def __init__(self, literals: Sequence[str], pattern: str | None = None, tail: str | None = None) -> None:
        """Of plain `literals`; or of a `pattern`, with `tail` for the end of a text that may become such a match."""
        self.literals = tuple(literals)
        # A pattern of no alternatives at all never matches.
        plain = "|".join(map(re.escape, literals)) or "(?!)"
        self._pattern = re.compile(pattern or plain, re.IGNORECASE if pattern else 0)
        self._tail = re.compile(tail + r"\Z", re.IGNORECASE) if tail else None

    def find(self, text: str) -> re.Match[str] | None:
        """The first one."""
        return self._pattern.search(text)

    def held(self, text: str) -> int:
        """How many of the last characters may be the start of one."""
        if self._tail is None:
            return overlap(text, self.literals)
        match = self._tail.search(text[-LONGEST_OPENER:])
        return 0 if match is None else match.end() - match.start()


class ToolFormat:
    """One format. Instances hold nothing: all state of a reading is in the generators.

    Attributes:
        name: what `--tool-format` calls it.
        openers: what begins a call anywhere in an answer.
        tokens: special tokens that calls are written with; they are kept in the text of a reply.
        forced: how a call is begun in the model's stead.
        starts_bare: an answer may begin with a call that has no opener, see `read_start`.
    """

    name: ClassVar[str]
    openers: ClassVar[Openers]
    tokens: ClassVar[tuple[str, ...]] = ()
    forced: ClassVar[ForcedCall]
    starts_bare: ClassVar[bool] = True

    def read_start(self, reading: Reading) -> Work[None]:
        """Read a call that begins an answer without an opener: JSON that is the whole answer. Raises as `read` does."""
        yield from read_bare(reading)

    def read(self, reading: Reading, opener: str) -> Work[None]:
        """Read the calls after `opener`, which has been read.

        Raises:
            NotACallError: from here on the text is not a call's. Calls that were ended stay.
        """
        raise NotImplementedError

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A call as the model would write it, for prompts."""
        return self.forced.opening(name) + dumps(arguments) + self.forced.end

    def shown(self, vocabulary: Mapping[str, int]) -> frozenset[int]:
        """The ids of `tokens`."""
        return frozenset(vocabulary[token] for token in self.tokens if token in vocabulary)
