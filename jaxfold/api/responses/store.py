"""Finished responses that can be fetched, deleted and continued: the contract, and the store in memory."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Limits of a store: the records used last are kept, so many and so large together, and each for so long unused.

    `redis_url` names a Redis server that keeps them instead of this process.
    """

    max_entries: int = 1024
    max_mb: float = 256
    ttl_minutes: float = 60
    redis_url: str | None = None

    @property
    def max_bytes(self) -> int:
        return int(self.max_mb * (1 << 20))

    @property
    def ttl_s(self) -> float:
        return self.ttl_minutes * 60


class StoreError(Exception):
    """The store cannot be reached. The message is one sentence without addresses or secrets."""


class ResponseStore(Protocol):
    """Records (JSON) by id. Reading one counts as using it."""

    async def put(self, response_id: str, record: bytes) -> bool:
        """Keep a record; False if it is larger than the whole store may be.

        Raises:
            StoreError: it cannot be kept now.
        """
        ...

    async def get(self, response_id: str) -> bytes | None:
        """The record, or None.

        Raises:
            StoreError: nobody can say.
        """
        ...

    async def delete(self, response_id: str) -> bool:
        """Forget a record; False if there is none. Raises as `get`."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class MemoryStore:
    """Keeps the records of this process; a restart forgets them. Used on one event loop."""

    def __init__(self, settings: StoreSettings, now: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._now = now
        # The one used last is at the end, so the first ones are also the first to expire.
        self._records: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    async def put(self, response_id: str, record: bytes) -> bool:
        self._expire()
        if len(record) > self._settings.max_bytes or self._settings.max_entries < 1:
            return False
        self._drop(response_id)
        self._records[response_id] = (record, self._now())
        self.bytes += len(record)
        while len(self._records) > self._settings.max_entries or self.bytes > self._settings.max_bytes:
            self._drop(next(iter(self._records)))
        return True

    async def get(self, response_id: str) -> bytes | None:
        self._expire()
        if response_id not in self._records:
            return None
        record, _ = self._records.pop(response_id)
        self._records[response_id] = (record, self._now())
        return record

    async def delete(self, response_id: str) -> bool:
        self._expire()
        return self._drop(response_id)

    async def close(self) -> None:
        return None

    def _expire(self) -> None:
        oldest = self._now() - self._settings.ttl_s
        while self._records:
            response_id, (_, used) = next(iter(self._records.items()))
            if used > oldest:
                return
            self._drop(response_id)

    def _drop(self, response_id: str) -> bool:
        found = self._records.pop(response_id, None)
        if found is None:
            return False
        self.bytes -= len(found[0])
        return True
