"""Sessions of the page: one a browser tab. They hold no text; prompts are reused by what they say, whoever says it."""

import time
import uuid
from dataclasses import dataclass

from jaxfold.api.http.errors import ApiError
from jaxfold.api.http.errors import printable

DEFAULT_SESSION = "__default__"
MAX_SESSIONS = 10_000


@dataclass(slots=True)
class Session:
    """`turns` counts the replies since the session began, or since its last `newChat`."""

    id: str
    created: float
    turns: int = 0


class Sessions:
    """The open sessions, by last use; beyond `limit` the one that was not used for longest is forgotten."""

    def __init__(self, limit: int = MAX_SESSIONS) -> None:
        self._limit = limit
        self._default = Session(DEFAULT_SESSION, time.time())
        self._open: dict[str, Session] = {}

    def create(self) -> Session:
        """A new session with an id that cannot be guessed."""
        session = Session(uuid.uuid4().hex, time.time())
        self._open[session.id] = session
        if len(self._open) > self._limit:
            del self._open[next(iter(self._open))]
        return session

    def use(self, session_id: str | None) -> Session:
        """The session of a request; without an id the one that all such requests share.

        Raises:
            ApiError: 404 for an id that is not open.
        """
        if session_id in (None, "", DEFAULT_SESSION):
            return self._default
        session = self._open.pop(str(session_id), None)
        if session is None:
            raise ApiError(404, f"Session '{printable(str(session_id))}' not found or has been disposed.")
        self._open[session.id] = session
        return session

    def dispose(self, session_id: str) -> None:
        """Forget a session.

        Raises:
            ApiError: 400 for the shared one, 404 for an id that is not open.
        """
        if session_id == DEFAULT_SESSION:
            raise ApiError(400, "Cannot dispose the default session.")
        if self._open.pop(session_id, None) is None:
            raise ApiError(404, f"Session '{printable(session_id)}' not found.")
