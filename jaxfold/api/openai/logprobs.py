"""Log-probabilities in the shapes of OpenAI's chat and completion objects."""

from collections.abc import Sequence
from typing import Any

from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import boolean
from jaxfold.api.http.fields import integer
from jaxfold.chat.types import Logprob
from jaxfold.chat.types import RequestError
from jaxfold.runtime.api import MAX_LOGPROBS
from jaxfold.tokenizers.base import Tokenizer

LOWEST = -9999.0
"""What stands for minus infinity, which JSON has no number for."""


def read_chat_logprobs(body: Body) -> int | None:
    """How many of the likeliest tokens a chat wants beside each of its own; None: no log-probabilities."""
    wanted = boolean(body, "logprobs")
    top = integer(body, "top_logprobs", 0, MAX_LOGPROBS)
    if top is not None and not wanted:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    return top or 0 if wanted else None


def read_completion_logprobs(body: Body) -> int | None:
    """The same of a completion, whose field is the number itself."""
    if body.get("logprobs") is False:
        return None
    return integer(body, "logprobs", 0, MAX_LOGPROBS)


class ChatLogprobs:
    """Writes `logprobs` of chat choices."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def write(self, tokens: Sequence[Logprob]) -> dict[str, Any]:
        """The object of these tokens, one entry each."""
        content = []
        for one in tokens:
            if one.score is not None:
                top = [self._entry(token, value) for token, value in one.score.top]
                content.append(self._entry(one.token_id, one.score.logprob) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, value: float) -> dict[str, Any]:
        # The bytes are the token's own: a text of its own may lack half of a character.
        raw = self._tokenizer.token_bytes(token_id)
        special = self._tokenizer.is_control(token_id)
        return {
            "token": raw.decode(errors="replace"),
            "logprob": finite(value),
            "bytes": None if special else list(raw),
        }


class CompletionLogprobs:
    """Writes `logprobs` of one completion choice, whose text it follows from its start."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def write(self, tokens: Sequence[Logprob]) -> dict[str, Any]:
        """The lists of the next tokens. Their texts are what each added, so that they join to the choice's text."""
        offsets: list[int] = []
        for one in tokens:
            offsets.append(self._offset)
            self._offset += len(one.text)
        return {
            "tokens": [one.text for one in tokens],
            "token_logprobs": [None if one.score is None else finite(one.score.logprob) for one in tokens],
            "top_logprobs": [self._top(one) for one in tokens],
            "text_offset": offsets,
        }

    def _top(self, one: Logprob) -> dict[str, float] | None:
        """The likeliest tokens by their texts, the token itself among them; of two with one text the likelier."""
        if one.score is None:
            return None
        found: dict[str, float] = {}
        for token_id, value in one.score.top:
            own = token_id == one.token_id
            text = one.text if own else self._tokenizer.token_bytes(token_id).decode(errors="replace")
            found.setdefault(text, finite(value))
        found.setdefault(one.text, finite(one.score.logprob))
        return found


def finite(value: float) -> float:
    """A number that JSON can write."""
    return max(value, LOWEST)
