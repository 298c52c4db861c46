"""The body of a Messages request to the canonical request, by way of the chat fields that ask for the same."""

from types import MappingProxyType
from typing import Any

from jaxfold.api.anthropic.messages import check_cache_control
from jaxfold.api.anthropic.messages import read_choice
from jaxfold.api.anthropic.messages import read_system
from jaxfold.api.anthropic.messages import read_tools
from jaxfold.api.anthropic.messages import read_turns
from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import integer
from jaxfold.api.http.fields import mapping
from jaxfold.api.http.fields import sequence
from jaxfold.api.http.fields import string
from jaxfold.api.openai.as_chat import PASSED
from jaxfold.api.openai.as_chat import FieldTable
from jaxfold.api.openai.as_chat import Translated
from jaxfold.api.openai.as_chat import passed_fields
from jaxfold.api.openai.as_chat import refusal
from jaxfold.api.openai.chat import EFFORTS
from jaxfold.api.settings import ApiSettings
from jaxfold.chat.template import ChatTemplate

KEEP_THINKING = MappingProxyType({"type": "clear_thinking_20251015", "keep": "all"})
"""The one edit of a context that asks for what happens anyway."""

FIELDS = FieldTable(
    supported=PASSED
    | {
        "model", "messages", "system", "max_tokens", "stop_sequences", "stream", "tools", "tool_choice", "thinking",
        "output_config", "output_format", "context_management", "cache_control", "metadata", "return_token_ids",
    },
    inert=MappingProxyType(
        {
            "betas": (list,),
            "inference_geo": (str,),
            "user": (str,),
            "user_profile_id": (str,),
            "workspace_id": (str,),
        }
    ),
    refused=MappingProxyType(
        {
            "service_tier": ("auto", "standard_only"),
            "speed": ("standard",),
            "container": (),
            "mcp_servers": ([],),
            "diagnostics": ({}, {"previous_message_id": None}),
            "thread": (),
            "fallbacks": ([],),
            "fallback_credit_token": (),
            "compaction": (),
            "billing_policy": (),
        }
    ),
)  # fmt: skip

_NAMES = MappingProxyType(
    {
        "stop": "stop_sequences",
        "reasoning_effort": "output_config.effort",
        "thinking_budget": "thinking.budget_tokens",
        "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    }
)


def read_message_request(
    body: Body, settings: ApiSettings, template: ChatTemplate, *, counting: bool = False
) -> Translated:
    """What a Messages body asks for; `counting` says that only its prompt does.

    Raises:
        RequestError: 400 with the path of the first field that is wrong.
    """
    fields = passed_fields(body)
    names = dict(_NAMES)
    messages = (*read_system(body), *read_turns(body, complete=not counting))
    tools, tool_names = read_tools(body)
    choice, parallel = read_choice(body)
    _check_plain_fields(body)
    fields |= {"tools": tools or None, "tool_choice": choice, "parallel_tool_calls": parallel}
    fields["max_tokens"] = integer(body, "max_tokens")
    stops = sequence(body, "stop_sequences")
    fields["stop"] = list(stops) or None
    fields |= _thinking(body, template, names)
    fields["response_format"] = _format(body, names)
    used = {name: value for name, value in fields.items() if value is not None}
    return Translated(used, messages, tool_names | names, overflow=settings.messages_overflow)


def _check_plain_fields(body: Body) -> None:
    """The fields that change nothing here once they are well formed."""
    string(mapping(body, "metadata"), "user_id", path="metadata.user_id")
    check_cache_control(body, "")
    edits = sequence(mapping(body, "context_management"), "edits", path="context_management.edits")
    for at, edit in enumerate(edits):
        if edit != KEEP_THINKING:
            raise refusal(f"context_management.edits[{at}]", "is not supported: only clear_thinking that keeps all is")


def _thinking(body: Body, template: ChatTemplate, names: dict[str, str]) -> dict[str, Any]:
    """The chat's switches for thinking. It is off unless the request asks for it; adaptive leaves it to the model."""
    effort = string(mapping(body, "output_config"), "effort", path="output_config.effort")
    if effort is not None and effort not in EFFORTS:
        raise refusal("output_config.effort", f"must be one of {', '.join(EFFORTS)}")
    config = body.get("thinking")
    if config is None:
        aliased = any(body.get(name) is not None for name in ("think", "enable_thinking"))
        return {"reasoning_effort": effort} if aliased else {"enable_thinking": False}
    if not isinstance(config, dict):
        raise refusal("thinking", "must be an object with a type, or null")
    kind = config.get("type")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise refusal("thinking.type", "must be enabled, adaptive or disabled")
    if config.get("display") not in (None, "summarized", "omitted"):
        raise refusal("thinking.display", 'must be "summarized" or "omitted"')
    names["enable_thinking"] = "thinking"
    budget = _budget(body, config) if kind == "enabled" else None
    can_think = template.supports_thinking or template.markers or "reasoning_effort" in template.variables
    if kind == "disabled" or (kind == "adaptive" and not can_think):
        return {"enable_thinking": False}
    return {"enable_thinking": True, "reasoning_effort": effort, "thinking_budget": budget}


def _budget(body: Body, config: dict[str, Any]) -> int:
    path = "thinking.budget_tokens"
    budget = config.get("budget_tokens")
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise refusal(path, "must be a positive integer")
    limit = integer(body, "max_tokens")
    if limit is not None and 0 < limit <= budget:
        raise refusal(path, "must be below max_tokens")
    return budget


def _format(body: Body, names: dict[str, str]) -> dict[str, Any] | None:
    """`output_config.format`, or its older name `output_format`, as the chat's response_format."""
    config = mapping(body, "output_config")
    for name in config:
        if name not in ("effort", "format") and config[name] is not None:
            raise refusal(f"output_config.{name}", "is not supported by this server")
    path, value = "output_config.format", config.get("format")
    if body.get("output_format") is not None:
        if value is not None:
            raise refusal("output_format", "is the older name of output_config.format: send one of them")
        path, value = "output_format", body["output_format"]
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("type") != "json_schema":
        raise refusal(path, 'must be an object of type "json_schema", or null')
    if not isinstance(value.get("schema"), dict):
        raise refusal(f"{path}.schema", "must be a JSON schema object")
    names["response_format.json_schema.schema"] = f"{path}.schema"
    names["response_format"] = path
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": value["schema"], "strict": True}}
