"""Errors on the OpenAI routes: one shape, one line, never a Python name, a path or a traceback."""

import logging
from collections.abc import Mapping
from typing import Any

from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed
from werkzeug.exceptions import NotFound
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.exceptions import RequestTimeout

from jaxfold.chat.types import GenerationError
from jaxfold.chat.types import RequestError
from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.api import NotReadyError
from jaxfold.runtime.api import QueueFullError

logger = logging.getLogger("jaxfold.api")

INTERNAL_MESSAGE = "the server failed while handling this request"
MAX_MESSAGE = 1000


class ApiError(Exception):
    """An answer other than 200, ready to be written in the shape of any protocol."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _one_line(message)
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def openai(self) -> dict[str, Any]:
        """The JSON body in OpenAI's shape."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def model_not_found(model_id: str) -> ApiError:
    """404 for an id that is not served."""
    return ApiError(404, f"the model '{printable(model_id)}' is not served here", param="model", code="model_not_found")


def unavailable(message: str, retry_after: int = 5) -> ApiError:
    """503: loading, draining or broken."""
    return ApiError(
        503, message, kind="server_error", code="service_unavailable", headers={"Retry-After": str(retry_after)}
    )


def as_api_error(error: BaseException, *, path: str = "", context_param: str | None = None) -> ApiError:
    """The answer for any exception that a handler can raise.

    `path` is named in 404 and 405. `context_param` is the field that a prompt which cannot fit came from.
    Exceptions that nobody expected are logged with their traceback and become a plain 500.
    """
    match error:
        case ApiError():
            return error
        case RequestError():
            return ApiError(error.status, error.message, param=error.param, code=error.code)
        case QueueFullError():
            return ApiError(
                429,
                str(error),
                kind="rate_limit_error",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(error.retry_after)},
            )
        case NotReadyError():
            return unavailable(str(error), error.retry_after)
        case CapacityError():
            return ApiError(400, str(error), param=context_param, code="context_length_exceeded")
        case GenerationError():
            return ApiError(500, str(error), kind="server_error")
        case HTTPException():
            return _from_http(error, path)
        case _:
            logger.error("unexpected error", exc_info=error)
            return ApiError(500, INTERNAL_MESSAGE, kind="server_error")


def _from_http(error: HTTPException, path: str) -> ApiError:
    """Werkzeug's refusals (no such route, wrong method, body too large, body too slow) in our words."""
    match error:
        case NotFound():
            return ApiError(404, f"unknown path {printable(path)}", code="not_found")
        case MethodNotAllowed():
            allow = ", ".join(sorted(error.valid_methods or ()))
            message = f"{printable(path)} does not accept this method" + (f"; it accepts {allow}" if allow else "")
            return ApiError(405, message, code="method_not_allowed", headers={"Allow": allow} if allow else None)
        case RequestEntityTooLarge():
            return ApiError(413, "the request body is larger than this server accepts", code="request_too_large")
        case RequestTimeout():
            return ApiError(408, "the request body did not arrive in time", code="request_timeout")
        case _:
            status = error.code or 500
            kind = "server_error" if status >= 500 else "invalid_request_error"
            return ApiError(status, (error.name or "error").lower(), kind=kind)


def printable(text: str, limit: int = 200) -> str:
    """A client's text as it may stand in a message or a log line: ASCII, on one line, not too long."""
    shown = text.encode("unicode_escape").decode("ascii")
    return shown if len(shown) <= limit else shown[:limit] + "..."


def _one_line(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "..."
