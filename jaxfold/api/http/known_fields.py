"""One table of every body field the server knows, and what happens to it. Three things can happen:

* SUPPORTED: the field is read and checked by the route's parser.
* INERT: the field asks for nothing that could change the reply here (who the user is, where a cloud would run or bill
  the request). Its type is checked, then it has done its work.
* REFUSED: the field names something this server does not do. Null and the listed harmless values, which ask for
  nothing, pass; anything else is 400 with the field as `param`, because a reply that leaves out what was asked for is
  worse than no reply.

A field in none of them is unknown to us and is left alone, as OpenAI's clients expect of a compatible server.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from typing import Literal

from jaxfold.chat.types import RequestError

Route = Literal["chat", "completions"]

_GENERATION = frozenset(
    {
        "model", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty",
        "frequency_penalty", "repeat_penalty", "repetition_penalty", "repeat_last_n", "logit_bias", "stop",
        "max_tokens", "n", "ignore_eos", "priority", "draft", "cache_salt", "return_token_ids", "logprobs",
        "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    }
)  # fmt: skip

SUPPORTED: Mapping[Route, frozenset[str]] = MappingProxyType(
    {
        "chat": _GENERATION
        | {
            "messages", "max_completion_tokens", "tools", "tool_choice", "chat_template_kwargs", "reasoning_effort",
            "think", "enable_thinking", "parallel_tool_calls", "top_logprobs", "thinking_budget",
        },
        "completions": _GENERATION | {"prompt", "add_special_tokens", "echo"},
    }
)  # fmt: skip

INERT: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "user": (str,),
        "safety_identifier": (str,),
        "prompt_cache_key": (str,),
        "prompt_cache_retention": (str,),
        "metadata": (dict,),
        "request_id": (str,),
    }
)

_ANYTHING_EMPTY: tuple[Any, ...] = ("", [], {}, False)

_REFUSED_EVERYWHERE: Mapping[str, tuple[Any, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "prompt_logprobs": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "grammar": ("",),
    "json_schema": ({},),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "truncate_prompt_tokens": (),
    "logits_processors": ([],),
    "typical_p": (1, 1.0),
    "mirostat": (0,),
    "dynatemp_range": (0, 0.0),
    "dry_multiplier": (0, 0.0),
    "xtc_probability": (0, 0.0),
    "prompt_embeds": (),
    "kv_transfer_params": (),
    "image": _ANYTHING_EMPTY,
    "images": _ANYTHING_EMPTY,
    "image_url": _ANYTHING_EMPTY,
    "input_image": _ANYTHING_EMPTY,
    "audio": _ANYTHING_EMPTY,
    "input_audio": _ANYTHING_EMPTY,
    "video": _ANYTHING_EMPTY,
    "video_url": _ANYTHING_EMPTY,
}

_REFUSED_IN_CHAT: Mapping[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "web_search_options": (),
    "prediction": (),
    "verbosity": ("medium",),
    "thinking": (),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "include_reasoning": (True,),
    "mm_processor_kwargs": ({},),
}

_REFUSED_IN_COMPLETIONS: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "top_logprobs": (),
    "thinking_budget": (0,),
    "max_completion_tokens": (),
    "tools": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
}

REFUSED: Mapping[Route, Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "chat": MappingProxyType({**_REFUSED_EVERYWHERE, **_REFUSED_IN_CHAT}),
        "completions": MappingProxyType({**_REFUSED_EVERYWHERE, **_REFUSED_IN_COMPLETIONS}),
    }
)


def check_known_fields(body: Mapping[str, Any], route: Route) -> None:
    """Refuse what the route cannot do, before anything else is looked at.

    Raises:
        RequestError: 400 with the first such field as `param`.
    """
    check_fields(body, REFUSED[route], INERT)


def check_fields(
    body: Mapping[str, Any], refused: Mapping[str, tuple[Any, ...]], inert: Mapping[str, tuple[type, ...]]
) -> None:
    """The same for any route's tables."""
    for name, value in body.items():
        if value is None:
            continue
        if name in refused and not any(_same(value, harmless) for harmless in refused[name]):
            raise RequestError(f"{name} with this value is not supported by this server", param=name)
        if name in inert and (
            not isinstance(value, inert[name]) or (isinstance(value, bool) and bool not in inert[name])
        ):
            kinds = " or ".join(_KIND_NAMES[kind] for kind in inert[name])
            raise RequestError(f"{name} must be {kinds}, or null", param=name)


_KIND_NAMES: Mapping[type, str] = MappingProxyType(
    {str: "a string", dict: "an object", list: "a list", int: "an integer", bool: "true or false"}
)


def _same(value: Any, harmless: Any) -> bool:
    """Equality that keeps True and 1 apart."""
    return isinstance(value, bool) == isinstance(harmless, bool) and bool(value == harmless)
