"""The tools of a Responses request as chat functions, and back from the name of a call to the tool it means."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from typing import Literal

from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import sequence
from jaxfold.api.http.fields import string
from jaxfold.api.openai.as_chat import refusal
from jaxfold.api.openai.messages import MAX_TOOLS
from jaxfold.chat.types import RequestError

HOSTED = frozenset(
    {
        "web_search", "web_search_preview", "file_search", "computer", "computer_use_preview", "code_interpreter",
        "image_generation", "mcp", "local_shell", "shell", "apply_patch", "tool_search", "programmatic_tool_calling",
    }
)  # fmt: skip
"""Tools that OpenAI's servers run, or for which its models are trained."""
JOIN = "__"
CUSTOM_SCHEMA: Mapping[str, Any] = MappingProxyType(
    {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
)

ToolKind = Literal["function", "custom"]


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool as its caller knows it."""

    kind: ToolKind
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSet:
    """`functions` are the chat's tools, `by_name` what their names mean, `paths` where each came from in the body.

    `dropped` are the types of hosted tools that were left out, `warnings` what is not done of the others.
    """

    functions: list[dict[str, Any]]
    by_name: Mapping[str, Offered]
    paths: Mapping[str, str]
    dropped: Sequence[str]
    warnings: Sequence[str]


def joined(name: str, namespace: str | None) -> str:
    """The name under which the model knows a tool."""
    return name if namespace is None else f"{namespace}{JOIN}{name}"


def read_tools(body: Body, *, drop_hosted: bool) -> ToolSet:
    """The tools of a body.

    Raises:
        RequestError: with the path of what is wrong; hosted tools are refused unless `drop_hosted`.
    """
    reader = _Reader(drop_hosted)
    raw = sequence(body, "tools")
    if len(raw) > MAX_TOOLS:
        raise refusal("tools", f"may hold at most {MAX_TOOLS} tools")
    for at, tool in enumerate(raw):
        reader.read(tool, f"tools[{at}]")
    if len(reader.functions) > MAX_TOOLS:
        raise refusal("tools", f"may hold at most {MAX_TOOLS} tools, those in namespaces included")
    return ToolSet(reader.functions, reader.by_name, reader.paths, reader.dropped, reader.warnings)


def read_choice(body: Body, tools: ToolSet) -> tuple[Any, list[dict[str, Any]]]:
    """`tool_choice` in the chat's shape, and the functions that it leaves to offer."""
    choice = body.get("tool_choice")
    if choice is None or isinstance(choice, str):
        return choice, tools.functions
    path = "tool_choice"
    kind = choice.get("type") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(kind, str):
        raise refusal(path, "must be a string, an object with a type, or null")
    if kind in ("function", "custom"):
        name = _named(choice, path, tools)
        return {"type": "function", "function": {"name": name}}, tools.functions
    if kind != "allowed_tools":
        raise refusal(f"{path}.type", f"names {kind}, a tool that this server does not run: use function")
    mode = choice.get("mode")
    if mode not in ("auto", "required"):
        raise refusal(f"{path}.mode", "must be auto or required")
    return mode, list(_allowed(choice, path, tools))


def _allowed(choice: Mapping[str, Any], path: str, tools: ToolSet) -> Iterator[dict[str, Any]]:
    listed = choice.get("tools")
    if not isinstance(listed, list):
        raise refusal(f"{path}.tools", "must be a list of tools")
    if len(listed) > MAX_TOOLS:
        raise refusal(f"{path}.tools", f"may hold at most {MAX_TOOLS} tools")
    names = set()
    for at, one in enumerate(listed):
        where = f"{path}.tools[{at}]"
        if not isinstance(one, dict):
            raise refusal(where, "must be an object with a type and a name")
        if one.get("type") not in tools.dropped:
            names.add(_named(one, where, tools))
    return (tool for tool in tools.functions if tool["function"]["name"] in names)


def _named(choice: Mapping[str, Any], path: str, tools: ToolSet) -> str:
    name = choice.get("name")
    if not isinstance(name, str) or not name:
        raise refusal(f"{path}.name", "must be the name of one of the tools")
    found = joined(name, string(choice, "namespace", path=f"{path}.namespace"))
    if found not in tools.by_name:
        raise refusal(f"{path}.name", "names a tool that is not among the tools")
    if tools.by_name[found].kind != choice.get("type"):
        raise refusal(f"{path}.type", f"must be {tools.by_name[found].kind} for this tool")
    return found


class _Reader:
    """Collects what a ToolSet holds."""

    def __init__(self, drop_hosted: bool) -> None:
        self.functions: list[dict[str, Any]] = []
        self.by_name: dict[str, Offered] = {}
        self.paths: dict[str, str] = {}
        self.dropped: list[str] = []
        self.warnings: list[str] = []
        self._drop_hosted = drop_hosted

    def read(self, tool: Any, path: str, namespace: str | None = None, note: str = "") -> None:
        """One tool; `note` goes before its description."""
        if not isinstance(tool, dict):
            raise refusal(path, "must be an object")
        kind = tool.get("type")
        match kind:
            case "function":
                self._function(tool, path, namespace, note)
            case "custom":
                self._custom(tool, path, namespace, note)
            case "namespace" if namespace is None:
                self._namespace(tool, path)
            case str():
                self._hosted(kind, path)
            case _:
                raise refusal(f"{path}.type", "must be a string")

    def _function(self, tool: Mapping[str, Any], path: str, namespace: str | None, note: str) -> None:
        parameters = tool.get("parameters")
        if not (parameters is None or isinstance(parameters, dict)):
            raise refusal(f"{path}.parameters", "must be a JSON schema object or null")
        strict = _flag(tool, "strict", path)
        function: dict[str, Any] = {}
        if parameters is not None:
            function["parameters"] = parameters
        if strict is not None:
            function["strict"] = strict
        if tool.get("output_schema") is not None:
            self.warnings.append(f"{path}.output_schema is not shown to the model")
        self._add(tool, path, Offered("function", _name(tool, path), namespace), function, note)

    def _custom(self, tool: Mapping[str, Any], path: str, namespace: str | None, note: str) -> None:
        syntax = tool.get("format")
        hint = ""
        if not (syntax is None or isinstance(syntax, dict)):
            raise refusal(f"{path}.format", "must be an object with a type, or null")
        if syntax is not None and syntax.get("type") != "text":
            if syntax.get("type") != "grammar" or not isinstance(syntax.get("definition"), str):
                raise refusal(f"{path}.format", "must be of type text, or of type grammar with a definition")
            hint = f"\n\nThe input follows this grammar:\n{syntax['definition']}"
            self.warnings.append(f"{path}.format is shown to the model, but not enforced")
        offered = Offered("custom", _name(tool, path), namespace)
        self._add(tool, path, offered, {"parameters": dict(CUSTOM_SCHEMA)}, note, hint)

    def _namespace(self, tool: Mapping[str, Any], path: str) -> None:
        name = _name(tool, path)
        note = string(tool, "description", path=f"{path}.description") or ""
        inner = tool.get("tools")
        if not isinstance(inner, list):
            raise refusal(f"{path}.tools", "must be a list of functions")
        if len(inner) > MAX_TOOLS:
            raise refusal(f"{path}.tools", f"may hold at most {MAX_TOOLS} tools")
        for at, one in enumerate(inner):
            # What is said of the namespace is said once, with its first tool.
            self.read(one, f"{path}.tools[{at}]", name, note if at == 0 else "")

    def _hosted(self, kind: str, path: str) -> None:
        if self._drop_hosted and _is_hosted(kind):
            self.dropped.append(kind)
            return
        shown = kind if _is_hosted(kind) else "this kind of tool"
        raise RequestError(
            f"{path}.type: {shown} is not run by this server; leave it out, or start the server with "
            "--hosted-tools drop, which leaves such tools out",
            param=f"{path}.type",
        )

    def _add(
        self,
        tool: Mapping[str, Any],
        path: str,
        offered: Offered,
        rest: Mapping[str, Any],
        note: str,
        hint: str = "",
    ) -> None:
        _check_common(tool, path)
        name = joined(offered.name, offered.namespace)
        if name in self.by_name:
            raise refusal(f"{path}.name", "is the name of an earlier tool")
        own = string(tool, "description", path=f"{path}.description")
        description = "\n\n".join(text for text in (note, own) if text) + hint
        function = {"name": name}
        if description or own is not None:
            function["description"] = description
        self.paths[f"tools[{len(self.functions)}].function"] = path
        self.paths[f"tools[{len(self.functions)}]"] = path
        self.functions.append({"type": "function", "function": function | dict(rest)})
        self.by_name[name] = offered


def _is_hosted(kind: str) -> bool:
    """Also for the dated names, such as web_search_2025_08_26."""
    return any(kind == name or kind.startswith(f"{name}_") for name in HOSTED)


def _check_common(tool: Mapping[str, Any], path: str) -> None:
    if _flag(tool, "defer_loading", path):
        raise refusal(f"{path}.defer_loading", "is not supported: every tool is offered from the start")
    if tool.get("allowed_callers") not in (None, [], ["direct"]):
        raise refusal(f"{path}.allowed_callers", "is not supported: only the model calls tools")


def _flag(tool: Mapping[str, Any], name: str, path: str) -> bool | None:
    value = tool.get(name)
    if not (value is None or isinstance(value, bool)):
        raise refusal(f"{path}.{name}", "must be true, false or null")
    return value


def _name(tool: Mapping[str, Any], path: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise refusal(f"{path}.name", "must be a non-empty string")
    return name
