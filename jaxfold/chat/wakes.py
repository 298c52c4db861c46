"""From the engine's thread to the event loop: wakes the readers of a round's tokens, a few at a time."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable

BATCH = 8
"""Readers woken in one turn of the loop. A round gives every stream a token; woken all at once they would keep the loop
for as long as all of them take together, and new requests and health checks would wait for that."""

logger = logging.getLogger(__name__)


class Wakes:
    """Calls functions on the running event loop, in the order of `add`, at most `BATCH` in one turn.

    The loop is told once for all that were added since it last looked.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], object]] = deque()
        self._told = False

    def add(self, call: Callable[[], object]) -> None:
        """Call `call` soon. From any thread; never blocks, never raises."""
        with self._lock:
            self._waiting.append(call)
            if self._told:
                return
            self._told = True
        try:
            self.loop.call_soon_threadsafe(self._turn)
        except RuntimeError:
            # The loop is closed: there is nobody left to read, and the engine must not suffer for it.
            logger.debug("an event came after the event loop was closed")

    def _turn(self) -> None:
        with self._lock:
            calls = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            self._told = more = bool(self._waiting)
        if more:
            self.loop.call_soon(self._turn)
        for call in calls:
            call()
