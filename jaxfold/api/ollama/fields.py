"""The bodies of Ollama's /api/chat and /api/generate to the canonical requests."""

import re
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from typing import Literal

from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import boolean
from jaxfold.api.http.fields import integer
from jaxfold.api.http.fields import mapping
from jaxfold.api.http.fields import sequence
from jaxfold.api.http.fields import string
from jaxfold.api.http.known_fields import SUPPORTED
from jaxfold.api.http.known_fields import check_fields
from jaxfold.api.ollama.format import read_format
from jaxfold.api.openai.chat import EFFORTS
from jaxfold.api.openai.chat import read_thinking_budget
from jaxfold.api.openai.messages import read_messages
from jaxfold.api.openai.messages import read_tools
from jaxfold.api.openai.sampling import read_limits
from jaxfold.api.openai.sampling import read_sampling
from jaxfold.api.openai.structured import read_shape
from jaxfold.api.settings import ApiSettings
from jaxfold.chat.reasoning import template_effort
from jaxfold.chat.template import ChatTemplate
from jaxfold.chat.types import ChatRequest
from jaxfold.chat.types import CompletionRequest
from jaxfold.chat.types import Limits
from jaxfold.chat.types import Message
from jaxfold.chat.types import RequestError
from jaxfold.runtime.api import SamplingParams

Kind = Literal["chat", "generate"]
FIELDS: Mapping[Kind, frozenset[str]] = MappingProxyType(
    {
        "chat": frozenset(
            {
                "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "format", "options",
                "think", "reasoning_effort", "thinking_budget", "keep_alive",
            }
        ),
        "generate": frozenset(
            {
                "model", "prompt", "system", "raw", "suffix", "images", "stream", "format", "options", "think",
                "reasoning_effort", "thinking_budget", "keep_alive",
            }
        ),
    }
)  # fmt: skip
"""What each route reads of a body."""
_OPTIONS = frozenset(
    {
        "temperature", "top_k", "top_p", "min_p", "seed", "repeat_penalty", "repeat_last_n", "presence_penalty",
        "frequency_penalty", "stop",
    }
)  # fmt: skip
_ELSEWHERE = SUPPORTED["chat"] | SUPPORTED["completions"]
_INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        **{name: f"options.{name}" for name in _OPTIONS},
        **dict.fromkeys(("max_tokens", "max_completion_tokens"), "options.num_predict"),
        **dict.fromkeys(("response_format", "guided_json", "structured_outputs"), "format"),
        "enable_thinking": "think",
    }
)
"""What a client means by a field of the OpenAI routes."""
THINK_LEVELS = ("low", "medium", "high", "max")
FILL_CONTEXT = -2

# What asks for something the server does not do, and the values that ask for nothing.
_REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "logprobs": (False,),
        "top_logprobs": (0,),
        "truncate": (False,),
        "shift": (False,),
        "skills": ([],),
        "context": ([],),
        "template": ("",),
        "width": (0,),
        "height": (0,),
        "steps": (0,),
    }
)
_WHY = MappingProxyType(
    {
        "truncate": "a prompt that does not fit is always refused, never cut",
        "shift": "a reply ends where the context is full",
        "context": "send the conversation to /api/chat",
        "template": "start the server with --chat-template, or send raw: true with a rendered prompt",
    }
)
_REFUSED_OPTIONS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "mirostat": (0,),
        "tfs_z": (1,),
        "typical_p": (0, 1),
        "penalize_newline": (True,),
        "logits_all": (False,),
        "vocab_only": (False,),
        "embedding_only": (False,),
        "draft_num_predict": (0,),
    }
)
# How a local runner would be started. This server's window, threads and devices are set when it starts; the values
# are checked, so that a broken request is told so. Name -> smallest integer, or None for a bool.
_RUNNER_OPTIONS: Mapping[str, int | None] = MappingProxyType(
    {
        "num_ctx": 1, "num_batch": 1, "num_gpu": -1, "num_gqa": 0, "main_gpu": 0, "num_thread": 0, "num_keep": -1,
        "numa": None, "low_vram": None, "f16_kv": None, "use_mmap": None, "use_mlock": None,
    }
)  # fmt: skip
_NUMBER = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)"
_DURATION = re.compile(rf"-?({_NUMBER}|({_NUMBER}(ns|us|µs|ms|s|m|h))+)", re.ASCII)

OLLAMA_DEFAULTS = MappingProxyType(
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.0, "repeat_penalty": 1.1, "penalty_last_n": 64}
)
"""What Ollama documents, where neither the model's generation_config.json nor a flag says anything."""


def default_sampling(settings: ApiSettings) -> SamplingParams:
    """The settings of a request under /api that names none."""
    silent = {name: value for name, value in OLLAMA_DEFAULTS.items() if name not in settings.sampling_set}
    return replace(settings.default_sampling, **silent)  # type: ignore[arg-type]  # each name is one of its fields


def check_body(body: Body, kind: Kind) -> None:
    """Refuse what the route cannot do, and check the fields that have no effect here.

    A field that only another route of this server knows is refused, so that nobody takes it for being heard.

    Raises:
        RequestError: 400 with the first such field as `param`.
    """
    for name, harmless in _REFUSED.items():
        if not _asks_nothing(body.get(name), harmless):
            why = f": {_WHY[name]}" if name in _WHY else ""
            raise RequestError(f"{name} is not supported by this server{why}", param=name)
    for name in _ELSEWHERE.difference(FIELDS[kind], _REFUSED).intersection(body):
        if not _asks_nothing(body[name], ([], "", False)):
            instead = f": send {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise RequestError(f"{name} is not a field of this route{instead}", param=name)
    _check_keep_alive(body.get("keep_alive"))


def asks_to_load(body: Body, field: str) -> bool:
    """True for the request that only wants the model in memory: no messages, or no prompt."""
    value = body.get(field)
    return value == [] if field == "messages" else value in (None, "") and not body.get("images")


def read_chat(body: Body, settings: ApiSettings, template: ChatTemplate, model: str, vocab_size: int) -> ChatRequest:
    """The conversation of an /api/chat body.

    Raises:
        RequestError: 400 with the path of the first field that is wrong.
    """
    if body.get("messages") is None:
        raise RequestError("messages is required", param="messages")
    raw = sequence(body, "messages")
    kwargs, thinking = read_thinking(body, template, model)
    options = read_options(body)
    constraint, forced = read_shape(body, read_format(body))
    messages = read_messages({"messages": with_ids([plain_message(one, at) for at, one in enumerate(raw)])})
    return ChatRequest(
        messages=messages,
        sampling=options_sampling(options, settings, vocab_size),
        limits=options_limits(options),
        tools=read_tools(body),
        template_kwargs=kwargs,
        enable_thinking=thinking,
        parallel_tool_calls=boolean(body, "parallel_tool_calls", default=True),
        constraint=constraint,
        force_tool=forced,
        thinking_budget=read_thinking_budget(body),
    )


def read_generate(
    body: Body, settings: ApiSettings, template: ChatTemplate, model: str, vocab_size: int
) -> ChatRequest | CompletionRequest:
    """The prompt of an /api/generate body: one user turn, or with `raw` the text as it stands."""
    check_images(body, "images")
    prompt = string(body, "prompt") or ""
    system = string(body, "system") or ""
    if string(body, "suffix"):
        raise RequestError(f'"{model}" does not support insert', param="suffix")
    options = read_options(body)
    sampling = options_sampling(options, settings, vocab_size)
    limits = options_limits(options)
    constraint, budget = read_format(body), read_thinking_budget(body)
    if boolean(body, "raw"):
        if system:
            raise RequestError("raw takes the prompt as it stands, without a system text", param="system")
        if body.get("think") not in (None, False):
            raise RequestError("raw takes the prompt as it stands: think has no place in it", param="think")
        return CompletionRequest(prompt, sampling, limits, add_special_tokens=True, constraint=constraint)
    kwargs, thinking = read_thinking(body, template, model)
    instructions = [Message("system", system)] if system else []
    messages = (*instructions, Message("user", prompt))
    return ChatRequest(
        messages,
        sampling,
        limits,
        template_kwargs=kwargs,
        enable_thinking=thinking,
        constraint=constraint,
        thinking_budget=budget,
    )


def read_thinking(body: Body, template: ChatTemplate, model: str) -> tuple[dict[str, Any], bool]:
    """Settings for the template, and whether the model shall think: not, unless the request says so."""
    think: Any = body.get("think")
    effort = string(body, "reasoning_effort")
    if effort is not None and effort not in EFFORTS:
        raise RequestError(f"reasoning_effort must be one of {', '.join(EFFORTS)}", param="reasoning_effort")
    if isinstance(think, str):
        if think not in THINK_LEVELS:
            levels = ", ".join(f'"{level}"' for level in THINK_LEVELS)
            raise RequestError(f"think must be true, false, {levels} or null", param="think")
        think, effort = True, think
    elif not (think is None or isinstance(think, bool)):
        raise RequestError("think must be true, false, a level or null", param="think")
    elif think is None:
        think = effort not in (None, "none")
    if not think:
        return {}, False
    has_levels = "reasoning_effort" in template.variables
    if not (has_levels or template.supports_thinking or template.markers):
        raise RequestError(f'"{model}" does not support thinking', param="think")
    if has_levels and effort not in (None, "none"):
        return {"reasoning_effort": template_effort(effort, template.effort_levels)}, True
    return {}, True


def read_options(body: Body) -> Mapping[str, Any]:
    """The object `options`, with what cannot be done refused."""
    options = mapping(body, "options")
    with _inside_options():
        check_fields(options, _REFUSED_OPTIONS, {})
        for name, low in _RUNNER_OPTIONS.items():
            if low is None:
                boolean(options, name)
            else:
                integer(options, name, low=low)
    return options


def options_sampling(options: Mapping[str, Any], settings: ApiSettings, vocab_size: int) -> SamplingParams:
    """The draw's settings in `options`, on top of the defaults of these routes."""
    with _inside_options():
        return read_sampling(options, default_sampling(settings), vocab_size)


def options_limits(options: Mapping[str, Any]) -> Limits:
    """`num_predict` and `stop`. A length above the room is lowered to it, as clients of Ollama expect."""
    with _inside_options():
        if integer(options, "num_predict") == FILL_CONTEXT:
            return Limits(max_tokens=1 << 62, stop=read_limits(options).stop, overflow="clamp")
        return replace(read_limits(options, "num_predict"), overflow="clamp")


def plain_message(raw: Any, at: int) -> Any:
    """One message in the shape that `read_messages` knows: Ollama names a tool's result by `tool_name`."""
    if not isinstance(raw, dict):
        return raw
    check_images(raw, f"messages[{at}].images", "images")
    if raw.get("tool_name") is None:
        return raw
    string(raw, "tool_name", path=f"messages[{at}].tool_name")
    return {"name": raw["tool_name"], **raw}


def with_ids(messages: list[Any]) -> list[Any]:
    """Calls and results of a history without ids get them, in order: some templates pair them by id."""
    waiting: list[tuple[str, str]] = []
    count = 0
    result = []
    for raw in messages:
        message = raw
        if isinstance(raw, dict) and isinstance(raw.get("tool_calls"), list):
            calls = []
            for call in raw["tool_calls"]:
                function = call.get("function") if isinstance(call, dict) else None
                if isinstance(function, dict):
                    count += 1
                    call = {**call, "id": call.get("id") or f"call_{count}"}
                    waiting.append((str(call["id"]), str(function.get("name"))))
                calls.append(call)
            message = {**raw, "tool_calls": calls}
        elif isinstance(raw, dict) and raw.get("role") == "tool":
            message = _answered(raw, waiting)
        result.append(message)
    return result


def check_images(raw: Mapping[str, Any], path: str, name: str = "images") -> None:
    """Images, which a text model cannot see, are refused rather than left out."""
    images = sequence(raw, name, path=path)
    if images:
        raise RequestError(f"{path}: this model does not take images, only text", param=path)


def _answered(message: Mapping[str, Any], waiting: list[tuple[str, str]]) -> Mapping[str, Any]:
    """A tool's result with the id of the call that it answers, which then waits no longer."""
    given = message.get("tool_call_id")
    named = [one for one in waiting if one[1] == message.get("name")]
    found = next((one for one in waiting if one[0] == given), None) if given else next(iter(named or waiting), None)
    if found is None:
        return message
    waiting.remove(found)
    return {**message, "tool_call_id": found[0]}


def _check_keep_alive(value: Any) -> None:
    """The one model stays loaded, so the time has no effect; a value that is no duration is still an error."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = isinstance(value, str) and len(value) <= 64 and _DURATION.fullmatch(value)
    if not (value is None or number or text):
        raise RequestError('keep_alive must be a number of seconds or a duration such as "5m"', param="keep_alive")


def _asks_nothing(value: Any, harmless: tuple[Any, ...]) -> bool:
    return value is None or any(isinstance(value, bool) == isinstance(one, bool) and value == one for one in harmless)


@contextmanager
def _inside_options() -> Iterator[None]:
    """Refusals raised inside name the field as one of `options`."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"options: {error.message}", f"options.{error.param}", error.code) from None
