"""The rules that need a look at the syntax tree. Each takes sources and returns complaints, so it can be tested."""

import ast
import re
from collections.abc import Iterator

from tests.house.sources import Source
from tests.house.sources import dotted

FILE_LINES = 500
KERNEL_FILE_LINES = 700
FUNCTION_LINES = 60

MUTABLE_CALLS = re.compile(r"dict|list|set|bytearray|\w*[dD]ict|deque|Counter|WeakSet|Weak(Key|Value)Dictionary")
MUTATING_METHODS = re.compile(
    r"add|append|appendleft|clear|discard|extend|insert|pop|popitem|popleft|remove|setdefault|sort|update"
)
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
# Where programs are compiled ahead of time, and what researchers call by hand. Nothing here runs for a request.
JIT_HOMES = re.compile(
    r"jaxfold/runtime/((encoders/)?programs[^/]*(\.py|/.+)|self_check\.py|placement\.py)|jaxfold/models/.+|pallas_kernels/.+|jaxfold/research\.py"
)


def file_size(source: Source) -> Iterator[str]:
    limit = KERNEL_FILE_LINES if source.name.startswith("pallas_kernels/") else FILE_LINES
    if source.lines > limit:
        yield f"{source.name}: {source.lines} lines, at most {limit}"


def function_size(source: Source) -> Iterator[str]:
    """Decorators are not counted; a function inside another counts for both."""
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{source.name}:{node.lineno}: {node.name} has {lines} lines, at most {FUNCTION_LINES}"


def star_import(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            yield f"{source.name}:{node.lineno}: import * from {node.module}"


def module_docstring(source: Source) -> Iterator[str]:
    """An empty __init__.py has nothing to explain; a private module may stay silent."""
    private = source.name.split("/")[-1].startswith("_") and not source.name.endswith("__init__.py")
    if source.in_package and source.tree.body and not private and not ast.get_docstring(source.tree):
        yield f"{source.name}: a public module without a docstring"


def module_state(source: Source) -> Iterator[str]:
    """Containers at module level must be constants: named in capitals, filled where they are made, never changed.

    `global`, and caches without a bound on module functions, are state too.
    """
    if not source.in_package:
        return
    constants = set()
    for name, value, line in _module_assignments(source.tree.body):
        if name == "__all__" or not _is_mutable(value):
            continue
        if not CONSTANT.fullmatch(name) or _is_empty(value):
            yield f"{source.name}:{line}: {name} is a mutable container at module level"
        constants.add(name)
    for node in ast.walk(source.tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Global):
            yield f"{source.name}:{line}: global {', '.join(node.names)}"
        elif (changed := _changed_name(node)) in constants:
            yield f"{source.name}:{line}: the constant {changed} is changed"
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from (f"{source.name}:{line}: {node.name} has a cache without a bound" for _ in _endless_caches(node))


def jit_inside(source: Source) -> Iterator[str]:
    """`jax.jit` in a package only where programs are made ahead of requests."""
    if not source.in_package or JIT_HOMES.fullmatch(source.name):
        return
    for node in ast.walk(source.tree):
        imported = (
            isinstance(node, ast.ImportFrom) and node.module == "jax" and any(a.name == "jit" for a in node.names)
        )
        if imported or (isinstance(node, ast.Attribute) and dotted(node) in ("jax.jit", "jax.pmap", "pjit.pjit")):
            yield f"{source.name}:{getattr(node, 'lineno', 0)}: jit outside the table of programs"


def _module_assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr, int]]:
    """Name, value and line of what is assigned at module level, inside `if`, `try` and `with` too."""
    for node in body:
        if isinstance(node, ast.Assign):
            yield from ((t.id, node.value, node.lineno) for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
            yield node.target.id, node.value, node.lineno
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            for field in ("body", "orelse", "finalbody"):
                yield from _module_assignments(getattr(node, field, []))


def _is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return MUTABLE_CALLS.fullmatch(dotted(value.func).split(".")[-1]) is not None
    return isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp))


def _is_empty(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return not value.args and not value.keywords
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, (ast.List, ast.Set)) and not value.elts


def _changed_name(node: ast.AST) -> str | None:
    """The name whose value this node changes in place, if it does."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and MUTATING_METHODS.fullmatch(node.func.attr)
    ):
        return dotted(node.func.value)
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
        return dotted(node.value)
    return None


def _endless_caches(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = dotted(called).split(".")[-1]
        none = isinstance(decorator, ast.Call) and any(
            isinstance(value, ast.Constant) and value.value is None
            for value in [*decorator.args, *(keyword.value for keyword in decorator.keywords)]
        )
        if name == "cache" or (name == "lru_cache" and none):
            yield decorator
