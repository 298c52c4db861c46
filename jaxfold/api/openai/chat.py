"""POST .../chat/completions: OpenAI's chat protocol on top of the chat service."""

from collections.abc import Mapping
from typing import Any

from quart import Blueprint
from quart import Response

from jaxfold.api.exchange.incoming import receive
from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import boolean
from jaxfold.api.http.fields import integer
from jaxfold.api.http.fields import mapping
from jaxfold.api.http.fields import string
from jaxfold.api.http.wire import dumps
from jaxfold.api.openai.logprobs import ChatLogprobs
from jaxfold.api.openai.logprobs import read_chat_logprobs
from jaxfold.api.openai.messages import is_title_request
from jaxfold.api.openai.messages import read_messages
from jaxfold.api.openai.messages import read_tools
from jaxfold.api.openai.sampling import check_single_choice
from jaxfold.api.openai.sampling import read_background
from jaxfold.api.openai.sampling import read_cache_salt
from jaxfold.api.openai.sampling import read_limits
from jaxfold.api.openai.sampling import read_sampling
from jaxfold.api.openai.structured import read_shape
from jaxfold.api.settings import ApiSettings
from jaxfold.api.state import ServerState
from jaxfold.chat.reasoning import template_effort
from jaxfold.chat.reply import Collected
from jaxfold.chat.template import ChatTemplate
from jaxfold.chat.types import LADDER
from jaxfold.chat.types import ChatRequest
from jaxfold.chat.types import Message
from jaxfold.chat.types import Piece
from jaxfold.chat.types import ReasoningDelta
from jaxfold.chat.types import RequestError
from jaxfold.chat.types import TextDelta
from jaxfold.chat.types import ToolCallDelta
from jaxfold.chat.types import ToolCallStart

EFFORTS = ("none", *LADDER)


class ChatStyle:
    """OpenAI's chat objects. `logprobs` writes log-probabilities where they were asked for."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, logprobs: ChatLogprobs | None) -> None:
        self._logprobs = logprobs

    def opening(self, index: int) -> str | None:
        return f'{{"index":{index},"delta":{{"role":"assistant"}},"finish_reason":null}}'

    def delta(self, index: int, piece: Piece) -> str | None:
        match piece:
            case TextDelta():
                delta = f'"content":{dumps(piece.text)}'
            case ReasoningDelta():
                delta = f'"reasoning_content":{dumps(piece.text)}'
            case ToolCallStart():
                call = {"index": piece.index, "id": piece.id, "type": "function"}
                delta = f'"tool_calls":[{dumps(call | {"function": {"name": piece.name, "arguments": ""}})}]'
            case ToolCallDelta():
                more = {"index": piece.index, "function": {"arguments": piece.arguments}}
                delta = f'"tool_calls":[{dumps(more)}]'
        scored = "" if self._logprobs is None else f'"logprobs":{dumps(self._logprobs.write(piece.logprobs))},'
        return f'{{"index":{index},"delta":{{{delta}}},{scored}"finish_reason":null}}'

    def ending(self, index: int, reason: str) -> str:
        return f'{{"index":{index},"delta":{{}},"finish_reason":"{reason}"}}'

    def choice(self, index: int, whole: Collected) -> Mapping[str, Any]:
        reasoning, calls = whole.reasoning.strip(), whole.tool_calls
        message: dict[str, Any] = {"role": "assistant", "content": whole.text if whole.text or not calls else None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
        logprobs = None if self._logprobs is None else self._logprobs.write(whole.logprobs)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": whole.finish.reason}


def chat_routes(state: ServerState) -> Blueprint:
    """POST of any path that ends in /chat/completions."""
    routes = Blueprint("chat", __name__)

    @routes.post("/chat/completions")
    @routes.post("/<path:prefix>/chat/completions")
    async def chat_completions(prefix: str = "") -> Response:
        call = await receive(state, "chat")
        service = call.service
        vocab = service.engine.info.vocab_size
        ask = await call.read(lambda: read_chat(call.body, state.settings, service.template, vocab))
        style = ChatStyle(None if ask.logprobs is None else ChatLogprobs(service.tokenizer))
        return await call.answer(style, "chatcmpl", [await service.prepare_chat(ask)])

    return routes


def read_chat(
    body: Body,
    settings: ApiSettings,
    template: ChatTemplate,
    vocab_size: int,
    messages: tuple[Message, ...] | None = None,
) -> ChatRequest:
    """The canonical request in a body whose fields are known to be supported; `messages` stand for the body's own.

    Raises:
        RequestError: 400 with the path of the first field that is wrong.
    """
    check_single_choice(body)
    messages = read_messages(body) if messages is None else messages
    kwargs, thinking = _template_kwargs(body, template, settings.reasoning_effort)
    constraint, forced = read_shape(body)
    return ChatRequest(
        messages=messages,
        sampling=read_sampling(body, settings.default_sampling, vocab_size),
        limits=read_limits(body, "max_tokens", "max_completion_tokens"),
        tools=read_tools(body),
        template_kwargs=kwargs,
        enable_thinking=thinking,
        background=read_background(body) or is_title_request(body),
        draft=boolean(body, "draft", default=True),
        cache_salt=read_cache_salt(body),
        parallel_tool_calls=boolean(body, "parallel_tool_calls", default=True),
        logprobs=read_chat_logprobs(body),
        constraint=constraint,
        force_tool=forced,
        thinking_budget=read_thinking_budget(body),
    )


def read_thinking_budget(body: Body) -> int | None:
    """Most tokens of reasoning; 0 is the same as missing, which is what the server was started with."""
    return integer(body, "thinking_budget", low=0) or None


def _template_kwargs(
    body: Body, template: ChatTemplate, default_effort: str | None
) -> tuple[dict[str, Any], bool | None]:
    """What the template gets beside the messages, and whether the model shall think (None: the template's default).

    An explicit switch wins over the effort; the effort reaches the template only where the model thinks and the
    template looks at it (else any effort but "none" just means: think).  The server's `default_effort` stands for one
    that the request does not name, on models that can think at all.
    """
    kwargs = dict(mapping(body, "chat_template_kwargs"))
    nested = _effort(kwargs, "reasoning_effort", "chat_template_kwargs.reasoning_effort")
    effort = _effort(body, "reasoning_effort", "reasoning_effort") or nested
    kwargs.pop("reasoning_effort", None)
    thinking, param = _thinking_switch(body, kwargs)
    if effort is not None and thinking is None:
        thinking, param = effort != "none", "reasoning_effort"
    has_levels = "reasoning_effort" in template.variables
    can_think = has_levels or template.supports_thinking or template.markers is not None
    if thinking and not can_think:
        raise RequestError(f"{param} asks for reasoning, which this model does not do", param=param)
    if effort is None and default_effort is not None and can_think:
        effort = default_effort
        thinking = effort != "none" if thinking is None else thinking
    if thinking and has_levels and effort not in (None, "none"):
        kwargs["reasoning_effort"] = template_effort(effort, template.effort_levels)
    if thinking is False and template.channels and has_levels:
        kwargs["reasoning_effort"] = template_effort("low", template.effort_levels)  # it has no other way to think less
    return kwargs, thinking


def _thinking_switch(body: Body, kwargs: dict[str, Any]) -> tuple[bool | None, str]:
    """The switch for thinking under any of its names, and that name; the ones in `kwargs` are taken out."""
    nested = {name: kwargs.pop(name) for name in ("enable_thinking", "thinking") if name in kwargs}
    if isinstance(nested.get("thinking"), dict):
        nested["thinking"] = _typed_switch(nested["thinking"].get("type"))
    switches = [(name, body.get(name)) for name in ("enable_thinking", "think")]
    switches += [(f"chat_template_kwargs.{name}", value) for name, value in nested.items()]
    result: bool | None = None
    param = ""
    for path, value in switches:
        if not (value is None or isinstance(value, bool)):
            raise RequestError(f"{path} must be true, false or null", param=path)
        if value is not None and result not in (None, value):
            raise RequestError(f"{path} contradicts another switch for thinking in this request", param=path)
        if value is not None:
            result, param = value, path
    return result, param


def _typed_switch(kind: Any) -> bool:
    """Anthropic's form of the switch, {"type": "enabled"}, which some clients put into the template's settings."""
    if kind not in ("enabled", "disabled"):
        path = "chat_template_kwargs.thinking"
        raise RequestError(f'{path}.type must be "enabled" or "disabled"', param=path)
    return bool(kind == "enabled")


def _effort(source: Body, name: str, path: str) -> str | None:
    effort = string(source, name, path=path)
    if effort is not None and effort not in EFFORTS:
        raise RequestError(f"{path} must be one of {', '.join(EFFORTS)}", param=path)
    return effort
