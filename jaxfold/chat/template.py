"""A model's chat template: compiled once, rendered in a bounded sandbox, with callers' control tokens kept as text."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime
from itertools import takewhile
from typing import Any
from typing import NoReturn

from jinja2 import TemplateError
from jinja2 import meta
from jinja2 import pass_context
from jinja2.runtime import Context

from jaxfold.chat.harmony import is_harmony
from jaxfold.chat.literals import Literals
from jaxfold.chat.literals import TokenGuard
from jaxfold.chat.messages import INSTRUCTIONS
from jaxfold.chat.messages import TemplateTraits
from jaxfold.chat.messages import arrange
from jaxfold.chat.messages import plain_text
from jaxfold.chat.messages import to_template
from jaxfold.chat.probing import probe
from jaxfold.chat.reasoning import ReasoningMarkers
from jaxfold.chat.reasoning import find_markers
from jaxfold.chat.reasoning import named_efforts
from jaxfold.chat.sandbox import RenderBudget
from jaxfold.chat.sandbox import RenderLimitError
from jaxfold.chat.sandbox import TemplateSandbox
from jaxfold.chat.tools.format import ToolFormat
from jaxfold.chat.tools.prompt import explanation
from jaxfold.chat.tools.registry import FORMATS
from jaxfold.chat.tools.registry import find_format
from jaxfold.chat.types import Message
from jaxfold.chat.types import RequestError
from jaxfold.tokenizers.base import Tokenizer

MAX_SOURCE_CHARS = 1 << 20
RENDER_SECONDS = 2.0
# A template may show a text several times (tools, say) and copy it on the way, but not without end.
OUTPUT_CHARS, OUTPUT_FACTOR = 1 << 20, 8
WORK_CHARS, WORK_FACTOR = 1 << 26, 256
MAX_JSON_INDENT = 16
LITERALS = "_literals"
# What the server decides; a request's chat_template_kwargs may not set these.
OWNED = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"),
        *("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"),
        *("tokenize", "return_dict", "return_tensors", "padding", "truncation", "max_length"),
        *("raise_exception", "strftime_now", "range", "dict", "namespace", "cycler", "joiner"),
        *("self", "caller", "varargs", "kwargs", "loop"),
    }
)
NO_TEMPLATE = "the model has no chat template: the conversation was written as plain 'role: content' lines"
NO_TOOLS = "the model's chat template does not show tools: a system text explains them in its stead"


# What is known of a model without a template: plain lines show every role, but no tools.
NO_TRAITS = TemplateTraits(tools=False, calls=False, results=False)
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "required": []}


class ChatTemplateError(Exception):
    """A template that cannot be compiled. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered prompt: `text` with markers, what stands behind them, and what the caller should know."""

    text: str
    literals: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class _RaisedError(Exception):
    """The template called raise_exception."""


class ChatTemplate:
    """The chat template of one model. Immutable and thread-safe.

    `special` are texts for the template's variables of the same names, from tokenizer_config.json (`bos_token`,
    `eos_token`, `pad_token` ...); `bos_token` and `eos_token` default to the tokenizer's own where these are clear.
    Without a source the prompt is plain lines, as suits a model that was never trained on a chat format.
    """

    def __init__(
        self,
        source: str | None,
        tokenizer: Tokenizer,
        special: Mapping[str, str] | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
        seconds: float = RENDER_SECONDS,
        tool_format: str | None = None,
    ) -> None:
        """Compile `source`; `seconds` of CPU time are what one rendering may take.

        `tool_format` names the format of tool calls (a key of `FORMATS`) where the template should not decide.

        Raises:
            ChatTemplateError: the source is no template.
        """
        self.source = source
        self.markers: ReasoningMarkers | None = find_markers(source, tokenizer.special_tokens)
        self.effort_levels: tuple[str, ...] = named_efforts(source)
        self._seconds = seconds
        self._special = _special_texts(tokenizer, special or {})
        self._starts_with_bos = tokenizer.add_bos
        self._guard = TokenGuard(tokenizer, source or "", self.markers)
        self._now = now
        self._sandbox = TemplateSandbox()
        self._sandbox.filters["tojson"] = _tojson
        self._sandbox.globals |= {"raise_exception": _raise_exception, "strftime_now": self._strftime_now}
        self.variables: frozenset[str] = frozenset()
        self.traits = NO_TRAITS
        if source is not None:
            self._compile(source)
            self.traits = probe(self._shows)
        self.channels: bool = is_harmony(source)
        found = find_format(source, self.traits.tools, tokenizer.special_tokens)
        self.tool_format: ToolFormat = found if tool_format is None else FORMATS[tool_format]

    @property
    def special(self) -> Mapping[str, str]:
        """The texts of bos_token, eos_token and the others that the model's files name; "" where there is none."""
        return self._special

    @property
    def supports_tools(self) -> bool:
        """The template shows tool definitions."""
        return self.traits.tools

    @property
    def supports_thinking(self) -> bool:
        """The template has a switch for thinking."""
        return not self.variables.isdisjoint({"enable_thinking", "thinking"})

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        template_kwargs: Mapping[str, Any] | None = None,
        enable_thinking: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """The prompt that the model is to continue as the assistant; without `add_generation_prompt` the messages only.

        Raises:
            RequestError: the template refused the messages (its own words), failed or went over its limits; or a key
                of `template_kwargs` is the server's.
        """
        literals = Literals(self._guard)
        variables = self._kwargs(template_kwargs or {}, literals)
        if enable_thinking is not None:
            variables |= {"enable_thinking": enable_thinking, "thinking": variables.get("thinking", enable_thinking)}
        if not add_generation_prompt:
            variables["add_generation_prompt"] = False
        definitions = [_as_function(tool) for tool in tools]
        warnings: list[str] = [NO_TEMPLATE] if self.source is None else []
        if definitions and not self.traits.tools:
            warnings.append(NO_TOOLS)
            messages = _explained(messages, definitions, self.tool_format)
            definitions = []
        entries = to_template(arrange(messages, self.traits, self.tool_format), literals, self.traits, "messages")
        if self.source is None:
            text = self._special.get("bos_token", "") if self._starts_with_bos else ""
            text += plain_text(entries, add_generation_prompt)
        else:
            text = self._render(entries, definitions, variables, literals)
        if enable_thinking is False and self.opens_reasoning(text):
            assert self.markers is not None
            text += self.markers.end
        return Rendered(text, literals.used(text), tuple(warnings))

    def opens_reasoning(self, text: str) -> bool:
        """The rendered prompt ends inside an open reasoning block."""
        return self.markers is not None and text.rstrip().endswith(self.markers.start.rstrip())

    def _render(
        self, entries: list[dict[str, Any]], tools: list[Any], variables: Mapping[str, Any], literals: Literals
    ) -> str:
        hidden = [literals.hide_value(tool, f"tools[{at}]") for at, tool in enumerate(tools)]
        complete = [{**tool, "function": _completed(tool["function"])} for tool in hidden]
        try:
            return self._try(entries, hidden, variables, literals)
        except RequestError:
            if complete == hidden:
                raise
        # Many templates fail on a tool that leaves out a description or its parameters, as it may.
        return self._try(entries, complete, variables, literals)

    def _try(
        self, entries: list[dict[str, Any]], tools: list[Any], variables: Mapping[str, Any], literals: Literals
    ) -> str:
        try:
            return self._run(entries, tools, variables, literals)
        except _RaisedError as error:
            raise RequestError(literals.show(str(error)), "messages") from error
        except RenderLimitError as error:
            raise RequestError(f"the model's chat template was stopped: {error}", "messages") from None
        except RecursionError:
            raise RequestError("the model's chat template recurses too deeply", "messages") from None
        except Exception as error:  # a template can raise anything that Python expressions raise
            reason = literals.show(str(error)) or type(error).__name__
            raise RequestError(
                f"the model's chat template cannot render this conversation: {reason}", "messages"
            ) from error

    def _run(
        self, entries: list[dict[str, Any]], tools: list[Any], variables: Mapping[str, Any], literals: Literals
    ) -> str:
        output = OUTPUT_CHARS + OUTPUT_FACTOR * literals.size
        budget = RenderBudget(self._seconds, WORK_CHARS + WORK_FACTOR * literals.size)
        owned = {"messages": entries, "tools": tools or None, "documents": None}
        values = {"add_generation_prompt": True, **variables, **self._special, **owned, LITERALS: literals}
        text = self._sandbox.render(self._template, values, budget, output)
        return literals.unescape(text)

    def _compile(self, source: str) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise ChatTemplateError(f"the chat template is longer than {MAX_SOURCE_CHARS} characters")
        try:
            self._template = self._sandbox.from_string(source)
            self.variables = frozenset(meta.find_undeclared_variables(self._sandbox.parse(source)))
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            where = f" (line {line})" if line else ""
            raise ChatTemplateError(f"the chat template cannot be compiled: {error}{where}") from error
        except (RecursionError, SyntaxError, MemoryError) as error:
            raise ChatTemplateError(f"the chat template is nested too deeply: {type(error).__name__}") from error

    def _shows(
        self,
        messages: Sequence[Message],
        *texts: str,
        traits: TemplateTraits | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> bool:
        literals = Literals(self._guard)
        entries = to_template(messages, literals, traits or TemplateTraits(), "messages")
        try:
            prompt = self._run(entries, list(tools), {}, literals)
        except (Exception, RenderLimitError):
            return False
        return all(text in prompt for text in texts)

    def _kwargs(self, values: Mapping[str, Any], literals: Literals) -> dict[str, Any]:
        kwargs: dict[str, Any] = {}
        for key, value in values.items():
            param = f"chat_template_kwargs.{key}"
            if key == "chat_template":
                raise RequestError("a request cannot bring its own chat template", param)
            if key in OWNED or key in self._special or key.startswith("_"):
                raise RequestError(f"{param} is set by the server and cannot be changed by a request", param)
            kwargs[key] = literals.hide_value(value, param)
        return kwargs

    def _strftime_now(self, form: str) -> str:
        return self._now().strftime(form)


def _as_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's form, which templates expect; a bare function is put into it."""
    return {"type": "function", **tool} if "function" in tool else {"type": "function", "function": dict(tool)}


def _completed(function: Mapping[str, Any]) -> dict[str, Any]:
    """A function that leaves nothing out which a template may look for."""
    given = {key: value for key, value in function.items() if value is not None}
    parameters = {**NO_PARAMETERS, **given.get("parameters", {})}
    properties = parameters["properties"]
    if isinstance(properties, Mapping):
        parameters["properties"] = {
            name: {"description": "", **(schema if isinstance(schema, Mapping) else {})}
            for name, schema in properties.items()
        }
    return {"description": "", **given, "parameters": parameters}


def _explained(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], form: ToolFormat) -> list[Message]:
    """The conversation with a system text about the tools after its leading system messages."""
    leading = sum(1 for _ in takewhile(lambda message: message.role in INSTRUCTIONS, messages))
    return [*messages[:leading], Message("system", explanation(tools, form)), *messages[leading:]]


def special_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The `special` argument from a merged tokenizer_config.json, where a token is a text or {"content": text}."""
    texts: dict[str, str] = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(text, str):
            texts[name] = text
    return texts


def _special_texts(tokenizer: Tokenizer, special: Mapping[str, str]) -> dict[str, str]:
    by_id = {token_id: text for text, token_id in tokenizer.special_tokens.items()}
    texts = {"bos_token": "", "eos_token": ""}
    if tokenizer.bos_id is not None:
        texts["bos_token"] = by_id.get(tokenizer.bos_id, "")
    if len(tokenizer.eos_ids) == 1:
        texts["eos_token"] = by_id.get(next(iter(tokenizer.eos_ids)), "")
    return texts | {name: text for name, text in special.items() if text}


def _raise_exception(message: object) -> NoReturn:
    raise _RaisedError(str(message))


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and indent > MAX_JSON_INDENT:
        raise RenderLimitError(f"it indents JSON by {indent}")
    literals: Literals = context[LITERALS]
    return literals.to_json(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
