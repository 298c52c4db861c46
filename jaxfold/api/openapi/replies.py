"""JSON schemas of what the server answers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Schema = Mapping[str, Any]

_COUNT: Schema = {"type": "integer", "minimum": 0}
_SECONDS: Schema = {"type": "number", "minimum": 0}
_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_FINISH: Schema = {"enum": ["stop", "length", "tool_calls"]}


def _object(**properties: Schema) -> Schema:
    """An object with all of these; it may have more."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_CALL = _object(id=_TEXT, type={"const": "function"}, function=_object(name=_TEXT, arguments=_TEXT))
_MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"const": "assistant"},
        "content": _TEXT_OR_NULL,
        "reasoning_content": _TEXT,
        "tool_calls": _list(_CALL),
    },
    "required": ["role", "content"],
}
_LOGPROBS: Schema = {"type": ["object", "null"]}


def _completion(kind: str, choice: Schema) -> Schema:
    whole = _object(
        id=_TEXT, object={"const": kind}, created=_COUNT, model=_TEXT, choices=_list(choice), usage=_ref("Usage")
    )
    return {**whole, "properties": {**whole["properties"], "jaxfold": _ref("Stats")}}


SCHEMAS: Mapping[str, Schema] = MappingProxyType(
    {
        "Usage": _object(
            prompt_tokens=_COUNT,
            completion_tokens=_COUNT,
            total_tokens=_COUNT,
            prompt_tokens_details=_object(cached_tokens=_COUNT),
            completion_tokens_details=_object(reasoning_tokens=_COUNT),
        ),
        "Stats": {
            **_object(
                exactness={"enum": ["A", "B", "C"]},
                sampling={"enum": ["greedy", "exact"]},
                seed={"type": "integer"},
                token_sha={"type": "string", "pattern": "^[0-9a-f]{12}$"},
                tokens_per_second={"type": ["number", "null"]},
                queue_s=_SECONDS,
                prefill_s=_SECONDS,
                decode_s=_SECONDS,
                time_to_first_token={"type": ["number", "null"]},
                rounds=_COUNT,
                drafted=_COUNT,
                accepted=_COUNT,
                cached=_COUNT,
                preemptions=_COUNT,
            ),
            "description": "what the reply cost and what it takes to make it again",
        },
        "ChatCompletion": _completion(
            "chat.completion",
            _object(index=_COUNT, message=_MESSAGE, finish_reason=_FINISH, logprobs=_LOGPROBS),
        ),
        "Completion": _completion(
            "text_completion", _object(index=_COUNT, text=_TEXT, finish_reason=_FINISH, logprobs=_LOGPROBS)
        ),
        "Model": _object(
            id=_TEXT,
            object={"const": "model"},
            created=_COUNT,
            owned_by=_TEXT,
            max_model_len={"type": ["integer", "null"]},
            capabilities=_list({"enum": ["completion", "embedding"]}),
        ),
        "Embeddings": _object(
            object={"const": "list"},
            data=_list(
                _object(
                    object={"const": "embedding"},
                    index=_COUNT,
                    embedding={"anyOf": [_list({"type": "number"}), _TEXT], "description": "text for base64"},
                )
            ),
            model=_TEXT,
            usage=_object(prompt_tokens=_COUNT, total_tokens=_COUNT),
        ),
        "ModelList": _object(object={"const": "list"}, data=_list(_ref("Model"))),
        "Health": {
            **_object(status={"enum": ["ok", "loading", "error"]}),
            "description": "counters and facts beside the status, for callers with a key or where there are no keys",
        },
        "Status": _object(status={"const": "ok"}),
        "Decisions": _object(
            model=_TEXT,
            answers={"anyOf": [{"type": "object"}, _list({"type": "object"})], "description": "by id, or in order"},
            usage=_object(total_tokens=_COUNT),
        ),
        "Tokens": {
            "type": "object",
            "properties": {
                "count": _COUNT,
                "max_model_len": _COUNT,
                "tokens": _list(_COUNT),
                "token_strs": _list(_TEXT),
            },
            "required": ["count", "max_model_len", "tokens"],
        },
        "Prompt": _object(prompt=_TEXT),
        "TokenizerInfo": _object(
            tokenizer_class=_TEXT,
            vocab_size=_COUNT,
            model_max_length=_COUNT,
            bos_token=_TEXT_OR_NULL,
            eos_token=_TEXT_OR_NULL,
            pad_token=_TEXT_OR_NULL,
            unk_token=_TEXT_OR_NULL,
            chat_template=_TEXT_OR_NULL,
        ),
        "AnthropicMessage": _object(
            id=_TEXT,
            type={"const": "message"},
            role={"const": "assistant"},
            model=_TEXT,
            content=_list(_object(type=_TEXT)),
            stop_reason=_TEXT_OR_NULL,
            usage=_object(input_tokens=_COUNT, output_tokens=_COUNT),
        ),
        "AnthropicCount": _object(input_tokens=_COUNT),
        "Response": _object(
            id=_TEXT,
            object={"const": "response"},
            status=_TEXT,
            model=_TEXT,
            output=_list(_object(type=_TEXT)),
        ),
        "Deleted": _object(id=_TEXT, deleted={"const": True}),
        "openaiError": _object(
            error=_object(message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL),
        ),
        "anthropicError": _object(type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT)),
        "ollamaError": _object(error=_TEXT),
    }
)
"""By name, as `components/schemas` of the document. The errors are named after the formats in `formats`."""
