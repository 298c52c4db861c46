"""The body of the page's /api/chat to the canonical request. Names may be camelCase or snake_case."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import boolean
from jaxfold.api.http.fields import sequence
from jaxfold.api.http.fields import string
from jaxfold.api.ollama.fields import check_images
from jaxfold.api.ollama.fields import default_sampling
from jaxfold.api.ollama.fields import plain_message
from jaxfold.api.ollama.fields import read_thinking
from jaxfold.api.ollama.fields import with_ids
from jaxfold.api.openai.chat import read_thinking_budget
from jaxfold.api.openai.messages import forces_tool
from jaxfold.api.openai.messages import read_messages
from jaxfold.api.openai.messages import read_tools
from jaxfold.api.openai.sampling import read_limits
from jaxfold.api.openai.sampling import read_sampling
from jaxfold.api.settings import ApiSettings
from jaxfold.api.uploads.store import Stored
from jaxfold.api.uploads.store import Uploads
from jaxfold.chat.template import ChatTemplate
from jaxfold.chat.types import ChatRequest
from jaxfold.chat.types import RequestError

MAX_SESSION_ID = 256

# camelCase -> the name that the readers know. Where both are sent, the camelCase one counts.
_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "maxTokens": "max_tokens",
        "topK": "top_k",
        "topP": "top_p",
        "minP": "min_p",
        "repetitionPenalty": "repetition_penalty",
        "repeatPenalty": "repeat_penalty",
        "repeatLastN": "repeat_last_n",
        "presencePenalty": "presence_penalty",
        "frequencyPenalty": "frequency_penalty",
        "reasoningEffort": "reasoning_effort",
        "thinkingBudget": "thinking_budget",
        "toolChoice": "tool_choice",
        "parallelToolCalls": "parallel_tool_calls",
        "session_id": "sessionId",
        "new_chat": "newChat",
    }
)
NOT_UPLOADED = "Attachment path must reference a previously uploaded file."


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A turn of the page. `session_id` None is the shared session."""

    chat: ChatRequest
    session_id: str | None
    new_chat: bool


def read_page_request(
    body: Body, settings: ApiSettings, template: ChatTemplate, vocab_size: int, uploads: Uploads | None
) -> PageRequest:
    """The turn in a body without a model.

    Raises:
        RequestError: 400 with the path of the first field that is wrong.
    """
    fields = {_NAMES.get(name, name): value for name, value in body.items() if value is not None}
    fields |= {new: body[old] for old, new in _NAMES.items() if old != new and body.get(old) is not None}
    if fields.get("backend"):
        raise RequestError("backend cannot be chosen: it is set when the server starts", param="backend")
    for name in ("skills", "multi_agent"):
        if fields.get(name) not in (None, False, []):
            raise RequestError(f"{name} is not supported by this server", param=name)
    if fields.get("messages") is None:
        raise RequestError("messages is required", param="messages")
    raw = sequence(fields, "messages")
    kwargs, thinking = read_thinking(fields, template, settings.model)
    messages = with_ids([_page_message(one, at, uploads) for at, one in enumerate(raw)])
    chat = ChatRequest(
        messages=read_messages({"messages": messages}),
        sampling=read_sampling(fields, default_sampling(settings), vocab_size),
        limits=replace(read_limits(fields, "max_tokens"), overflow="clamp"),
        tools=read_tools(fields),
        template_kwargs=kwargs,
        enable_thinking=thinking,
        parallel_tool_calls=boolean(fields, "parallel_tool_calls", default=True),
        force_tool=forces_tool(fields),
        thinking_budget=read_thinking_budget(fields),
    )
    return PageRequest(chat, string(fields, "sessionId", most=MAX_SESSION_ID), boolean(fields, "newChat"))


def _page_message(raw: Any, at: int, uploads: Uploads | None) -> Any:
    """A message with its attachments checked, and the texts that only the server holds written into it."""
    if not isinstance(raw, dict):
        return raw
    path = f"messages[{at}]"
    boolean(raw, "isVideo")
    _check_names(raw, f"{path}.textFileNames", "textFileNames")
    for name in ("imagePaths", "audioPaths", "textFilePaths"):
        for number, file in enumerate(_check_names(raw, f"{path}.{name}", name)):
            _uploaded(uploads, file, f"{path}.{name}[{number}]")
    check_images(raw, f"{path}.imagePaths", "imagePaths")
    if raw.get("audioPaths"):
        raise RequestError(f"{path}.audioPaths: this model does not take audio, only text", f"{path}.audioPaths")
    texts = [
        _attached(uploads, one, f"{path}.attachments[{number}]")
        for number, one in enumerate(sequence(raw, "attachments", path=f"{path}.attachments"))
    ]
    message = plain_message(raw, at)
    content = message.get("content")
    held = "".join(text for text in texts if text)
    return {**message, "content": f"{held}{content}"} if held and isinstance(content, str) else message


def _attached(uploads: Uploads | None, raw: Any, path: str) -> str:
    """The text of an attachment that the server keeps for the client, as the page writes texts into a message."""
    if not isinstance(raw, dict):
        raise RequestError(f"{path} must be an object", param=path)
    file = string(raw, "file", path=f"{path}.file")
    shown = string(raw, "fileName", path=f"{path}.fileName", most=1024)
    string(raw, "mediaType", path=f"{path}.mediaType")
    backed = boolean(raw, "fileBacked")
    stored = _uploaded(uploads, file or "", f"{path}.file")
    if not backed:
        return ""
    text = stored.read_text()
    if text is None:
        raise RequestError(f"{path}.file: this model takes only text", param=f"{path}.file")
    name = " ".join((shown or stored.name).split())
    return f"[File: {name}]\n{text}\n[End of file]\n"


def _uploaded(uploads: Uploads | None, file: str, path: str) -> Stored:
    stored = None if uploads is None else uploads.find(file)
    if stored is None:
        raise RequestError(NOT_UPLOADED, param=path)
    return stored


def _check_names(raw: Mapping[str, Any], path: str, name: str) -> list[str]:
    names = sequence(raw, name, path=path)
    if not all(isinstance(one, str) for one in names):
        raise RequestError(f"{path} must be a list of strings or null", param=path)
    return list(names)
