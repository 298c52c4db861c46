"""How each protocol writes a refusal, chosen by path: also for what is refused before, or without, a route.

A protocol module has nothing to do but raise: `app` turns whatever comes out of a handler (and every 401, 403, 404,
405, 413 and 503 of its paths) into the format that `FORMATS` names for the path.
"""

import re
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from types import MappingProxyType
from typing import Any

from jaxfold.api.http.errors import ApiError
from jaxfold.api.http.errors import as_api_error
from jaxfold.chat.types import ContextLengthError

ANTHROPIC_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        408: "timeout_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        529: "overloaded_error",
    }
)


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """One protocol's errors.

    `body` gives the JSON of an error whose status is already the protocol's own. `statuses` maps our statuses to the
    protocol's where they differ. `too_long` words the refusal of a prompt that does not fit; None keeps ours.
    """

    name: str
    body: Callable[[ApiError], dict[str, Any]]
    statuses: Mapping[int, int] = field(default_factory=dict)
    too_long: Callable[[ContextLengthError], str] | None = None

    def translate(self, error: BaseException, *, path: str = "", context_param: str | None = None) -> ApiError:
        """Any exception of a handler as an error with this protocol's status and words."""
        answer = as_api_error(error, path=path, context_param=context_param)
        status = self.statuses.get(answer.status, answer.status)
        message = answer.message
        if self.too_long is not None and isinstance(error, ContextLengthError):
            message = self.too_long(error)
        return ApiError(status, message, kind=answer.kind, param=answer.param, code=answer.code, headers=answer.headers)


def _anthropic_body(error: ApiError) -> dict[str, Any]:
    default = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = ANTHROPIC_TYPES.get(error.status, default)
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def _prompt_too_long(error: ContextLengthError) -> str:
    """The words that Anthropic's clients look for before they compact a conversation."""
    asked = error.prompt_tokens + (error.reply_tokens or 0)
    return f"prompt is too long: {max(asked, error.context_length)} tokens > {error.context_length} maximum"


OPENAI = ErrorFormat("openai", ApiError.openai)
ANTHROPIC = ErrorFormat("anthropic", _anthropic_body, MappingProxyType({429: 529}), _prompt_too_long)
OLLAMA = ErrorFormat("ollama", lambda error: {"error": error.message}, MappingProxyType({429: 503}))

ANTHROPIC_VERSION = "anthropic-version"
"""The header by which Anthropic's clients are known where a path is not theirs alone."""

FORMATS: tuple[tuple[re.Pattern[str], ErrorFormat], ...] = (
    (re.compile(r"/(api|uploads)(/.*)?"), OLLAMA),
    (re.compile(r"(/anthropic)?(/v1)?/messages(/.*)?"), ANTHROPIC),
)
"""The first pattern that matches a whole path gives its format; every other path has OpenAI's."""
_SHARED = re.compile(r"(/.*)?/models(/.*)?")


def format_of(path: str, *, anthropic: bool = False) -> ErrorFormat:
    """The error format of a path (with one leading slash and none at the end).

    `anthropic` says that the request has the header `ANTHROPIC_VERSION`.
    """
    found = next((found for pattern, found in FORMATS if pattern.fullmatch(path)), OPENAI)
    shared = found is OPENAI and anthropic and _SHARED.fullmatch(path)
    return ANTHROPIC if shared else found
