"""Opens the store that the settings name."""

from jaxfold.api.responses.store import MemoryStore
from jaxfold.api.responses.store import ResponseStore
from jaxfold.api.responses.store import StoreSettings


def open_store(settings: StoreSettings) -> ResponseStore:
    """The store that the settings name. Nothing is connected yet."""
    if settings.redis_url is None:
        return MemoryStore(settings)
    # Redis is imported only where it is used.
    from jaxfold.api.responses.store_redis import RedisStore

    return RedisStore(settings, settings.redis_url)
