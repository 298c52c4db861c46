"""What the store keeps of a response, and the conversation that a chain of them makes."""

import json
import logging
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from jaxfold.api.exchange.blocks import Blocks
from jaxfold.api.http.errors import ApiError
from jaxfold.api.http.errors import printable
from jaxfold.api.http.errors import unavailable
from jaxfold.api.http.wire import dumps
from jaxfold.api.openai.messages import MAX_MESSAGES
from jaxfold.api.openai.messages import read_arguments
from jaxfold.api.responses.store import ResponseStore
from jaxfold.api.responses.store import StoreError
from jaxfold.chat.types import Message
from jaxfold.chat.types import RequestError
from jaxfold.chat.types import ToolCall

PREVIOUS = "previous_response_id"

logger = logging.getLogger("jaxfold.api")


class History:
    """The finished responses of a store."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def save(self, response: Mapping[str, Any], new: Sequence[Message], reply: Message) -> bool:
        """Keep a response and the messages that it adds to its conversation; False if that was not possible.

        Instructions are not among them, since they are not carried to a later turn.
        """
        messages = [asdict(message) for message in (*new, reply)]
        record = dumps({"response": response, "messages": messages}).encode("ascii")
        try:
            return await self._store.put(response["id"], record)
        except StoreError as error:
            logger.warning("a response was not stored: %s", error)
            return False

    async def find(self, response_id: str) -> dict[str, Any]:
        """A stored response.

        Raises:
            ApiError: 404, or 503 where the store cannot be reached.
        """
        record = await self._get(response_id)
        if record is None:
            raise not_stored(response_id)
        response: dict[str, Any] = record["response"]
        return response

    async def delete(self, response_id: str) -> None:
        """Forget a response. Raises as `find`."""
        try:
            found = await self._store.delete(response_id)
        except StoreError as error:
            raise unavailable(str(error)) from error
        if not found:
            raise not_stored(response_id)

    async def conversation(self, response_id: str | None) -> tuple[Message, ...]:
        """The messages up to and with the reply of a response, oldest first.

        Raises:
            RequestError: it, or one that it goes back to, is not stored.
            ApiError: 503 where the store cannot be reached.
        """
        turns: list[tuple[Message, ...]] = []
        size = 0
        wanted = response_id
        while wanted is not None:
            record = await self._get(wanted)
            if record is None:
                part = "" if wanted == response_id else f", which {printable(response_id or '')} goes back to,"
                raise RequestError(f"{PREVIOUS}: response {printable(wanted)}{part} is not stored here", PREVIOUS)
            turns.append(tuple(map(_message, record["messages"])))
            size += len(turns[-1])
            if size > MAX_MESSAGES:
                raise RequestError(f"{PREVIOUS}: a conversation may hold at most {MAX_MESSAGES} messages", PREVIOUS)
            wanted = record["response"][PREVIOUS]
        return tuple(message for turn in reversed(turns) for message in turn)

    async def close(self) -> None:
        """Let go of the store."""
        await self._store.close()

    async def _get(self, response_id: str) -> dict[str, Any] | None:
        try:
            record = await self._store.get(response_id)
        except StoreError as error:
            raise unavailable(str(error)) from error
        if record is None:
            return None
        value: dict[str, Any] = json.loads(record)
        return value


def not_stored(response_id: str) -> ApiError:
    """404 for a response that is not there."""
    message = f"no response with the id '{printable(response_id)}' is stored here"
    return ApiError(404, message, param="response_id", code="not_found")


def reply_message(blocks: Blocks) -> Message:
    """A reply as the message that a chat client would send back."""
    calls = [ToolCall(one.call_id, one.name, read_arguments(one.text)) for one in blocks.all if one.kind == "call"]
    return Message("assistant", blocks.text("text"), blocks.text("reasoning"), tuple(calls))


def _message(raw: dict[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in raw["tool_calls"])
    return Message(**{**raw, "tool_calls": calls})
