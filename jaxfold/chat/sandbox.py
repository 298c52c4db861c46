"""A jinja2 environment for templates that came with a checkpoint: no side effects, bounded time, bounded memory.

jinja2's own sandbox keeps a template away from Python's internals and bounds `range`, but a template can still loop
for ever (nested loops) or double a string until memory is gone.  Here every loop pass and macro call looks at the
clock, and every operation that can make a large value (`+`, `*`, `~`, `%`, joins, replacements, padding) is paid from
a budget before it runs.  It works in any thread and costs other threads nothing (a trace function would slow them).
"""

import functools
import re
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from types import GeneratorType
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.compiler import Frame
from jinja2.environment import Template
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.ext import loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import MAX_RANGE
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_INT_BITS = 4096
# Useless in a prompt and either able to blow up a small input or not a function of the input.
REMOVED_FILTERS = ("batch", "center", "pprint", "random", "slice", "urlize", "wordwrap", "xmlattr")
REMOVED_STR_METHODS = frozenset({"encode", "expandtabs", "maketrans", "translate"})
WIDE_PERCENT_FORMAT = re.compile(r"%[^%a-zA-Z]*(?:\*|\d{5,})")
WIDE_BRACE_FORMAT = re.compile(r"\d{5,}")


class RenderLimitError(BaseException):
    """A template used up its time or its memory. Not an `Exception`, so that no template helper can swallow it."""


class RenderBudget:
    """What one rendering may still use: CPU seconds of its thread, and characters (or list items) made."""

    __slots__ = ("_deadline", "_left", "_seconds")

    def __init__(self, seconds: float, characters: int) -> None:
        self._seconds = seconds
        self._deadline = time.thread_time() + seconds
        self._left = characters

    def check_time(self) -> None:
        if time.thread_time() > self._deadline:
            raise RenderLimitError(f"it ran for more than {self._seconds:g} seconds")

    def spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise RenderLimitError("it makes more text than the messages can account for")


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BoundedCodeGenerator(CodeGenerator):
    """Writes `~` and the ticks as direct calls of the environment."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat([str(part) for part in (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")])")

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        if isinstance(node.node, nodes.EnvironmentAttribute) and node.node.name == "tick":
            self.write("environment.tick()")
        else:
            super().visit_Call(node, frame, forward_caller=forward_caller)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment. Templates made from it are rendered with `render` and share nothing between renderings."""

    code_generator_class = _BoundedCodeGenerator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        self._run = threading.local()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constant folding would run the template's operators outside a rendering
            extensions=[loopcontrols, GenerationTag],
        )
        del self.globals["lipsum"]
        for name in REMOVED_FILTERS:
            del self.filters[name]
        self.filters |= {"format": _format, "indent": self._indent, "join": self._join, "replace": self._replace}
        self.filters |= {"sum": self._sum}
        self.filters = {name: self._ticking(function) for name, function in self.filters.items()}

    def render(self, template: Template, variables: Mapping[str, Any], budget: RenderBudget, max_output: int) -> str:
        """Text of the template, at most `max_output` characters.

        Raises:
            RenderLimitError: a limit was reached. Whatever else the template raises passes through.
        """
        self._run.budget = budget
        pieces: list[str] = []
        size = 0
        try:
            for piece in template.generate(dict(variables)):
                budget.check_time()
                size += len(piece)
                if size > max_output:
                    raise RenderLimitError(f"its output is longer than {max_output} characters")
                pieces.append(piece)
        finally:
            del self._run.budget
        return "".join(pieces)

    def tick(self) -> bool:
        """Called by compiled templates once a loop pass and a macro call."""
        self._budget().check_time()
        return True

    def concat(self, parts: Iterable[str]) -> str:
        """Joins the pieces of a block, a macro or a `~` (jinja2 calls this hook for all of them)."""
        pieces = list(parts)
        self._budget().spend(sum(map(len, pieces)))
        return "".join(pieces)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            self._budget().spend(len(left) + len(right))
        elif operator == "*":
            self._check_product(left, right)
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_percent(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, int) and abs(value) > MAX_RANGE:
                raise RenderLimitError(f"it passes the number {value} to a function; {MAX_RANGE} is the most")
        owner = getattr(target, "__self__", None)
        if isinstance(owner, str):
            if target.__name__ == "join" and len(args) == 1:
                args = ([*args[0]],)
                self._budget().spend(sum(len(item) + len(owner) for item in args[0] if isinstance(item, str)))
            elif target.__name__ == "replace" and len(args) >= 2:
                self._spend_replacement(owner, args[0], args[1])
        result = super().call(context, target, *args, **kwargs)
        if isinstance(result, str | list):
            self._budget().spend(len(result))
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in REMOVED_STR_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        formatter = super().wrap_str_format(value)
        if formatter is not None and WIDE_BRACE_FORMAT.search(value.__self__):
            raise RenderLimitError("it formats a value to an unreasonable width")
        return formatter

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        for loop in list(source.find_all(nodes.For)):
            loop.body.insert(0, self._tick_statement(loop.lineno))
            if loop.test is not None:
                loop.test = nodes.And(self._tick_call(loop.lineno), loop.test, lineno=loop.lineno, environment=self)
        bodies: list[nodes.Macro | nodes.CallBlock] = [*source.find_all(nodes.Macro), *source.find_all(nodes.CallBlock)]
        for macro in bodies:
            macro.body.insert(0, self._tick_statement(macro.lineno))
        return super()._generate(source, name, filename, defer_init)

    def _tick_call(self, lineno: int) -> nodes.Call:
        target = nodes.EnvironmentAttribute("tick", lineno=lineno, environment=self)
        return nodes.Call(target, [], [], None, None, lineno=lineno, environment=self)

    def _tick_statement(self, lineno: int) -> nodes.ExprStmt:
        return nodes.ExprStmt(self._tick_call(lineno), lineno=lineno, environment=self)

    def _budget(self) -> RenderBudget:
        budget: RenderBudget = self._run.budget
        return budget

    def _ticking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same filter, looking at the clock per call and per item of a lazy result."""

        @functools.wraps(function)  # also copies jinja2's mark of filters that take the context
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            result = function(*args, **kwargs)
            return self._ticking_items(result) if isinstance(result, GeneratorType) else result

        return wrapper

    def _ticking_items(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.tick()
            yield item

    def _check_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > MAX_INT_BITS:
                raise RenderLimitError("it multiplies unreasonable numbers")
            return
        sized, count = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(sized, str | list | tuple) and isinstance(count, int):
            self._budget().spend(len(sized) * max(count, 0))

    def _spend_replacement(self, text: str, old: Any, new: Any) -> None:
        if isinstance(old, str) and isinstance(new, str):
            self._budget().spend(len(text) + text.count(old) * len(new))

    def _replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = str(value), str(old), str(new)
        self._spend_replacement(text, old, new)
        return text.replace(old, new, -1 if count is None else count)

    def _join(self, value: Iterable[Any], d: Any = "", attribute: str | int | None = None) -> str:
        items = value if attribute is None else map(make_attrgetter(self, attribute), value)
        texts = list(map(str, items))
        separator = str(d)
        self._budget().spend(sum(map(len, texts)) + len(separator) * len(texts))
        return separator.join(texts)

    def _indent(self, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        text = str(value)
        size = len(width) if isinstance(width, str) else width
        self._budget().spend(len(text) + (text.count("\n") + 1) * size)
        indention = width if isinstance(width, str) else " " * width
        lines = text.split("\n")
        shown = [indention + line if line or blank else line for line in lines[1:]]
        return "\n".join([(indention if first else "") + lines[0], *shown])

    def _sum(self, iterable: Iterable[Any], attribute: str | int | None = None, start: float = 0) -> Any:
        if not isinstance(start, int | float):
            raise SecurityError("the sum filter adds numbers only")
        return sum(iterable if attribute is None else map(make_attrgetter(self, attribute), iterable), start)


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_INT_BITS:
        raise RenderLimitError("it raises a number to an unreasonable power")


def _check_percent(text: str) -> None:
    if WIDE_PERCENT_FORMAT.search(text):
        raise RenderLimitError("it formats a value to an unreasonable width")


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise TypeError("the format filter takes positional or keyword arguments, not both")
    _check_percent(str(value))
    return str(value) % (kwargs or args)
