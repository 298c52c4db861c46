"""The waiting requests: foreground before background, arrival order within each, bounded.

Ageing: background requests wait behind foreground ones, but not for ever.  Once `age_limit`
foreground requests have been taken while background ones waited, the oldest background request is
due: it is next, whatever waits, and the count starts again.  So a background request with n others
before it waits for at most `(n + 1) * age_limit` foreground requests.  A request taken because it was
due must not be preempted again for a foreground one (see `RequestQueue.due`), or ageing would be void.

Not thread-safe: the engine calls every method under its own lock.
"""

from collections import OrderedDict
from itertools import takewhile
from typing import Protocol

from jaxfold.runtime.api import QueueFullError
from jaxfold.runtime.pages import IntegrityError


class Waiting(Protocol):
    """What the queue reads of an item. None of it may change while the item waits."""

    @property
    def request_id(self) -> str: ...

    @property
    def background(self) -> bool: ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def arrival(self) -> int:
        """The engine's running number of the request; later requests have higher ones."""
        ...


class RequestQueue[T: Waiting]:
    """At most `max_requests` waiting items whose prompts have at most `max_tokens` tokens in total.

    A single prompt longer than `max_tokens` is still accepted when nothing waits.
    """

    def __init__(self, max_requests: int, max_tokens: int, age_limit: int = 64) -> None:
        if min(max_requests, max_tokens, age_limit) < 1:
            raise ValueError("max_requests, max_tokens and age_limit must be at least 1")
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._age_limit = age_limit
        self._foreground: OrderedDict[str, T] = OrderedDict()
        self._background: OrderedDict[str, T] = OrderedDict()
        self._tokens = 0
        self._passes = 0

    def __len__(self) -> int:
        return len(self._foreground) + len(self._background)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._foreground or request_id in self._background

    @property
    def tokens(self) -> int:
        """Prompt tokens of everything that waits."""
        return self._tokens

    @property
    def foreground_waiting(self) -> int:
        """How many foreground requests wait."""
        return len(self._foreground)

    @property
    def due(self) -> bool:
        """Whether a background request has been passed over so often that `next()` takes it first.

        Read it before `next()`: a request taken while this was true should keep its lane even when
        foreground requests wait.
        """
        return self._passes >= self._age_limit

    def push(self, item: T, spare: int = 0, bounded: bool = True) -> None:
        """Add a new request at the end of its class.

        `spare` is how many lanes are free: so many requests do not wait, they are only passing through. Without
        `bounded` the limits do not apply.

        Raises:
            QueueFullError: it would exceed a limit; nothing was added.
            ValueError: its id already waits.
        """
        if bounded:
            self._check_room(item, spare)
        self._add(item)

    def _check_room(self, item: T, spare: int) -> None:
        if len(self) >= self._max_requests + spare:
            raise QueueFullError(
                f"The queue is full: {len(self) - spare} of at most {self._max_requests} requests are waiting."
            )
        if len(self) and self._tokens + item.prompt_tokens > self._max_tokens:
            raise QueueFullError(
                f"The queue is full: {self._tokens} prompt tokens are waiting, this request adds "
                f"{item.prompt_tokens}, and the limit is {self._max_tokens}."
            )

    def push_front(self, item: T) -> None:
        """Take back a request that was preempted: before everything of its class that arrived later.

        It was accepted once, so the limits do not apply. Raises ValueError if its id already waits.
        """
        self._add(item)
        line = self._line(item)
        earlier = list(takewhile(lambda other: other.arrival < item.arrival, line.values()))
        for other in (item, *reversed(earlier)):
            line.move_to_end(other.request_id, last=False)

    def peek(self, foreground_only: bool = False) -> T | None:
        """The request that `next` would take, left in place. None if there is none."""
        if self.due and not foreground_only:
            return _first(self._background)
        item = _first(self._foreground)
        return item if item is not None or foreground_only else _first(self._background)

    def next(self, foreground_only: bool = False) -> T | None:
        """Take the next request out. None if there is none.

        `foreground_only` is for a lane that was just cleared for a foreground request: it looks past a
        background request that is due, which then takes the next lane that becomes free.
        """
        item = self.peek(foreground_only)
        if item is None:
            return None
        self._remove(item)
        if item.background:
            self._passes = 0
        elif self._background:
            self._passes += 1
        return item

    def cancel(self, request_id: str) -> T | None:
        """Take out the request with this id, in O(1). None if it does not wait here."""
        for line in (self._foreground, self._background):
            if request_id in line:
                item = line[request_id]
                self._remove(item)
                return item
        return None

    def clear(self) -> list[T]:
        """Take everything out: foreground, then background, each in arrival order."""
        items = [*self._foreground.values(), *self._background.values()]
        for item in items:
            self._remove(item)
        return items

    def check_integrity(self) -> None:
        """Raise IntegrityError if the token sum, the classes or the count of passes are wrong."""
        front, back = list(self._foreground.values()), list(self._background.values())
        tokens = sum(item.prompt_tokens for item in front + back)
        if tokens != self._tokens:
            raise IntegrityError(f"the queue counts {self._tokens} waiting tokens but holds {tokens}")
        if any(item.background for item in front) or not all(item.background for item in back):
            raise IntegrityError("a request waits in the wrong class of the queue")
        if self._passes and not back:
            raise IntegrityError(f"the queue counts {self._passes} passes but no background request waits")

    def _line(self, item: T) -> OrderedDict[str, T]:
        return self._background if item.background else self._foreground

    def _add(self, item: T) -> None:
        if item.request_id in self:
            raise ValueError(f"request {item.request_id!r} is already waiting")
        self._line(item)[item.request_id] = item
        self._tokens += item.prompt_tokens

    def _remove(self, item: T) -> None:
        del self._line(item)[item.request_id]
        self._tokens -= item.prompt_tokens
        if not self._background:
            self._passes = 0


def _first[T](line: OrderedDict[str, T]) -> T | None:
    return next(iter(line.values()), None)
