"""The parts that chat and completion replies share: names, usage, the stats block, stream options and chunks."""

import uuid
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxfold.api.http.errors import model_not_found
from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import boolean
from jaxfold.api.http.fields import mapping
from jaxfold.api.http.fields import string
from jaxfold.api.http.wire import dumps
from jaxfold.api.settings import ApiSettings
from jaxfold.api.settings import hosts
from jaxfold.chat.prepared import Prepared
from jaxfold.chat.types import Finish
from jaxfold.chat.types import RequestError
from jaxfold.chat.types import Usage
from jaxfold.runtime.api import ExactnessLevel


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """How a reply is to be written.

    `include_usage` moves usage to a last chunk without choices; `continuous_usage` puts the usage so far on every
    chunk. `return_token_ids` adds the ids to the stats block.
    """

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False


def read_options(body: Body) -> ReplyOptions:
    """`stream`, `stream_options` and `return_token_ids`."""
    stream = boolean(body, "stream")
    options = mapping(body, "stream_options")
    if body.get("stream_options") is not None and not stream:
        raise RequestError("stream_options is only allowed when stream is true", param="stream_options")
    flags: dict[str, bool] = {}
    for name in ("include_usage", "continuous_usage_stats"):
        value = options.get(name)
        if not (value is None or isinstance(value, bool)):
            raise RequestError(f"stream_options.{name} must be true or false", param=f"stream_options.{name}")
        flags[name] = bool(value)
    return ReplyOptions(
        stream, flags["include_usage"], flags["continuous_usage_stats"], boolean(body, "return_token_ids")
    )


def read_model(body: Body, settings: ApiSettings) -> str:
    """The id that the reply names: the one asked for where it is served, else the one that answers.

    Raises:
        ApiError: 404 for an id that is not served, if the server is strict about it.
    """
    asked = string(body, "model")
    if asked is None or hosts(asked, settings.model_ids, settings.model_file):
        return asked or settings.model
    if settings.strict_model:
        raise model_not_found(asked)
    return settings.model


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def usage_json(usage: Usage) -> dict[str, Any]:
    """Usage in OpenAI's shape."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def total(usages: Sequence[Usage]) -> Usage:
    """The sum over the choices of one response."""
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
        sum(usage.reasoning_tokens for usage in usages),
    )


def stats_json(finish: Finish, prepared: Prepared, exactness: ExactnessLevel, with_ids: bool) -> dict[str, Any]:
    """The `jaxfold` block: what the reply cost and what it takes to check it. Times are seconds."""
    stats = finish.stats
    first = stats.time_to_first_token_s
    timed = stats.completion_tokens > 1 and stats.decode_s > 0
    rate = (stats.completion_tokens - 1) / stats.decode_s if timed else None
    block: dict[str, Any] = {
        "engine": "lanes",
        "exactness": exactness,
        "sampling": "greedy" if prepared.sampling.temperature <= 0 else "exact",
        "seed": stats.seed,
        "token_sha": stats.token_sha,
        "tokens_per_second": None if rate is None else round(rate, 3),
        "queue_s": round(stats.queue_s, 6),
        "prefill_s": round(stats.prefill_s, 6),
        "decode_s": round(stats.decode_s, 6),
        "time_to_first_token": None if first is None else round(first, 6),
        "rounds": stats.rounds,
        "drafts": stats.drafted > 0,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "proposers": {
            proposer: {"drafted": drafted, "accepted": accepted}
            for proposer, (drafted, accepted) in sorted(stats.drafts.items())
        },
        "cached": stats.cached_tokens,
        "preemptions": stats.preemptions,
    }
    if prepared.warnings:
        block["warnings"] = list(prepared.warnings)
    if with_ids:
        block["token_ids"] = list(finish.token_ids)
    return block


class Chunks:
    """Writes the chunks of one streamed response. What stays the same in all of them is encoded once."""

    def __init__(self, head: Mapping[str, Any], options: ReplyOptions, prompt_tokens: int) -> None:
        self._head = f'data: {dumps(head)[:-1]},"choices":['
        self._options = options
        self._prompt_tokens = prompt_tokens
        self._completion_tokens = 0
        self._plain_end = ',"usage":null}\n\n' if options.include_usage else "}\n\n"

    def count(self, tokens: int) -> None:
        """Note reply tokens, for the usage so far."""
        self._completion_tokens += tokens

    def chunk(self, choice: str) -> bytes:
        """A chunk with one choice (JSON text)."""
        end = f"{self._so_far()}}}\n\n" if self._options.continuous_usage else self._plain_end
        return f"{self._head}{choice}]{end}".encode("ascii")

    def last(self, choice: str, usage: Usage | None, stats: Mapping[str, Any]) -> bytes:
        """The chunk that finishes a choice. `usage` is the whole response's, on its last choice."""
        if usage is not None and not self._options.include_usage:
            text = f',"usage":{dumps(usage_json(usage))}'
        elif self._options.continuous_usage:
            text = self._so_far()
        else:
            text = ',"usage":null' if self._options.include_usage else ""
        return f'{self._head}{choice}]{text},"jaxfold":{dumps(stats)}}}\n\n'.encode("ascii")

    def usage(self, usage: Usage) -> bytes:
        """The chunk after the last choice, for `include_usage`."""
        return f'{self._head}],"usage":{dumps(usage_json(usage))}}}\n\n'.encode("ascii")

    def _so_far(self) -> str:
        done, prompt = self._completion_tokens, self._prompt_tokens
        return f',"usage":{{"prompt_tokens":{prompt},"completion_tokens":{done},"total_tokens":{prompt + done}}}'
