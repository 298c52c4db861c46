"""Finished responses in a Redis server: they outlive this process, and several servers can share them."""

import contextlib
from typing import Any
from typing import Protocol

import redis
import redis.asyncio
from redis.exceptions import RedisError

from jaxfold.api.responses.store import StoreError
from jaxfold.api.responses.store import StoreSettings

PREFIX = "jaxfold:{responses}:"
"""Before every key. The braces keep the keys of a Redis cluster on one node."""
TIMEOUT_S = 5.0
UNREACHABLE = "the store of responses (Redis) cannot be reached"

# KEYS: prefix. ARGV: id, milliseconds to live. Defines what keeps the books, and drops what was not used in time.
_BOOKS = """
local prefix, id, ttl = KEYS[1], ARGV[1], tonumber(ARGV[2])
local used, sizes, total = prefix .. 'used', prefix .. 'sizes', prefix .. 'bytes'
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function drop(which)
    local size = redis.call('HGET', sizes, which)
    if size then
        redis.call('HDEL', sizes, which)
        redis.call('DECRBY', total, size)
    end
    redis.call('ZREM', used, which)
    return redis.call('DEL', prefix .. 'record:' .. which)
end
local function use(which)
    redis.call('ZADD', used, now, which)
    redis.call('PEXPIRE', prefix .. 'record:' .. which, ttl)
    for _, key in ipairs({used, sizes, total}) do redis.call('PEXPIRE', key, ttl) end
end
for _, old in ipairs(redis.call('ZRANGEBYSCORE', used, '-inf', now - ttl)) do drop(old) end
"""
# A full Redis refuses a script at its first write only, so that has to be one which needs memory.
_PUT = (
    "redis.call('SET', KEYS[1] .. 'record:' .. ARGV[1], '')"
    + _BOOKS
    + """
local record, most, bytes = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
drop(id)
redis.call('SET', prefix .. 'record:' .. id, record)
redis.call('HSET', sizes, id, #record)
redis.call('INCRBY', total, #record)
use(id)
while redis.call('ZCARD', used) > most or tonumber(redis.call('GET', total)) > bytes do
    drop(redis.call('ZRANGE', used, 0, 0)[1])
end
return 1
"""
)
_GET = (
    _BOOKS
    + """
local record = redis.call('GET', prefix .. 'record:' .. id)
if record then use(id) else drop(id) end
return record
"""
)
_DELETE = _BOOKS + "return drop(id)\n"


class _Script(Protocol):
    async def __call__(self, keys: list[str], args: list[Any]) -> Any: ...


class RedisStore:
    """Keeps records in Redis. Each call is one script, so that servers which share it cannot upset its books."""

    def __init__(self, settings: StoreSettings, url: str) -> None:
        self._settings = settings
        self._ttl_ms = max(1, round(settings.ttl_s * 1000))
        # Connections are made at the first call, on the server's event loop.
        self._client = redis.asyncio.Redis.from_url(
            url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, protocol=2
        )
        self._put: _Script = self._client.register_script(_PUT)
        self._get: _Script = self._client.register_script(_GET)
        self._delete: _Script = self._client.register_script(_DELETE)

    async def put(self, response_id: str, record: bytes) -> bool:
        settings = self._settings
        if len(record) > settings.max_bytes or settings.max_entries < 1:
            return False
        await self._run(self._put, response_id, record, settings.max_entries, settings.max_bytes)
        return True

    async def get(self, response_id: str) -> bytes | None:
        record: bytes | None = await self._run(self._get, response_id)
        return record

    async def delete(self, response_id: str) -> bool:
        return bool(await self._run(self._delete, response_id))

    async def close(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            await self._client.aclose()

    async def _run(self, script: _Script, response_id: str, *args: Any) -> Any:
        try:
            return await script(keys=[PREFIX], args=[response_id, self._ttl_ms, *args])
        except (RedisError, OSError) as error:
            raise StoreError(f"{UNREACHABLE}: {_reason(error)}") from error


def check_redis(url: str) -> None:
    """Connect once, when the server starts.

    Raises:
        StoreError: `url` is no Redis address, or nothing answers there as Redis does.
    """
    try:
        client = redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, protocol=2)
        with contextlib.closing(client):
            client.ping()
    except ValueError:
        raise StoreError(
            "this is no address of a Redis server: it begins with redis://, rediss:// or unix://"
        ) from None
    except (RedisError, OSError) as error:
        raise StoreError(f"{UNREACHABLE}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """What went wrong, without the address: it may hold a password."""
    match error:
        case redis.exceptions.AuthenticationError():
            return "it refuses the password"
        case redis.exceptions.TimeoutError() | TimeoutError():
            return "it does not answer in time"
        case redis.exceptions.ConnectionError() | OSError():
            return "no connection"
        case redis.exceptions.OutOfMemoryError():
            return "its memory is full"
        case _:
            return "it refuses the command"
