"""Grammars compiled by xgrammar for one tokenizer: cached within a bound, in threads of their own, within a time."""

import json
import re
import threading
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxfold.runtime.api import Grammar
from jaxfold.runtime.api import GrammarError
from jaxfold.runtime.api import GrammarSpec
from jaxfold.runtime.api import Matcher
from jaxfold.runtime.constraints.guard import load_xgrammar
from jaxfold.runtime.constraints.lane import add
from jaxfold.runtime.constraints.lane import allows
from jaxfold.tokenizers.base import Tokenizer

CACHE_BYTES = 256 << 20
THREADS = 2
SECONDS = 10.0
WHITESPACE = 32
"""Most blank characters in a row between the parts of a JSON text."""
MAX_REASON = 300
_WHERE = re.compile(r"^\[[\d:]+\] \S+:\d+: (Check failed: .*? is false: )?")


class XGrammar:
    """A compiled grammar."""

    def __init__(self, library: Any, compiled: Any, reachable: NDArray[np.int32]) -> None:
        self._library = library
        self._compiled = compiled
        self._reachable = reachable

    def matcher(self) -> Matcher:
        return XMatcher(self._library.GrammarMatcher(self._compiled), self._reachable)


class XMatcher:
    """See `runtime.api.Matcher`. `reachable` is the mask of the tokens that the grammar can hold at all."""

    def __init__(self, matcher: Any, reachable: NDArray[np.int32]) -> None:
        self._matcher = matcher
        self._reachable = reachable

    def fill(self, mask: NDArray[np.int32]) -> None:
        # It leaves the mask alone where every token is allowed, and the bits past the vocabulary always.
        mask[:] = -1
        self._matcher.fill_next_token_bitmask(mask.reshape(1, -1), 0)
        mask &= self._reachable

    def accept(self, token: int) -> bool:
        return allows(self._reachable, token) and bool(self._matcher.accept_token(token))

    def rollback(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)

    @property
    def complete(self) -> bool:
        return bool(self._matcher.is_completed())


class XGrammars:
    """See `runtime.api.Grammars`. xgrammar is loaded with the first grammar.

    Masks of a grammar's states are made when a reply first comes to them, and kept in the cache: compiling all of them
    ahead takes minutes for what a request may legally hold.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._compiler: Any = None
        self._library: Any = None
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="jaxfold-grammar")
        # One that hangs must not gather others behind it.
        self._slots = threading.BoundedSemaphore(THREADS)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def compile(self, spec: GrammarSpec) -> Grammar:
        """See `runtime.api.Grammars.compile`."""
        if not self._slots.acquire(timeout=SECONDS):
            raise GrammarError("other grammars are being compiled: try again")
        try:
            future: Future[Grammar] = self._pool.submit(self._compile, spec)
        except RuntimeError:
            self._slots.release()
            raise GrammarError("the server is shutting down") from None
        future.add_done_callback(lambda _: self._slots.release())
        try:
            return future.result(SECONDS)
        except FutureTimeoutError:
            raise GrammarError(f"it takes more than {SECONDS:g} s to compile") from None

    def _compile(self, spec: GrammarSpec) -> Grammar:
        with self._lock:
            if self._compiler is None:
                self._library = load_xgrammar()
                self._compiler = self._new_compiler()
        compiler = self._compiler
        forms: dict[str, Callable[[], Any]] = {
            "json_object": lambda: compiler.compile_json_schema('{"type": "object"}', max_whitespace_cnt=WHITESPACE),
            "json_schema": lambda: compiler.compile_json_schema(spec.text, max_whitespace_cnt=WHITESPACE),
            "regex": lambda: compiler.compile_regex(spec.text),
            "choice": lambda: compiler.compile_grammar(choice_grammar(json.loads(spec.text))),
            "ebnf": lambda: compiler.compile_grammar(spec.text),
            "structural_tag": lambda: compiler.compile_structural_tag(spec.text),
        }
        try:
            return XGrammar(self._library, forms[spec.kind](), self._reachable(spec))
        except Exception as error:
            raise GrammarError(reason_of(error)) from error

    def _reachable(self, spec: GrammarSpec) -> NDArray[np.int32]:
        """All tokens but the control tokens that the grammar does not name: "any text" would let them pass."""
        named = set(_named_tokens(json.loads(spec.text))) if spec.kind == "structural_tag" else set()
        mask = np.zeros(-(-self._vocab_size // 32), np.int32)
        known = range(min(self._vocab_size, self._tokenizer.vocab_size))
        bits = [token in named or not self._tokenizer.is_control(token) for token in known]
        packed = np.packbits(np.array(bits, np.bool_), bitorder="little")
        mask.view(np.uint8)[: packed.size] = packed
        add(mask, *(token for token in self._tokenizer.eos_ids if token < self._vocab_size))
        return mask

    def _new_compiler(self) -> Any:
        library, tokenizer = self._library, self._tokenizer
        # Control tokens are no text: a grammar reaches them by their ids or not at all. Bytes that no UTF-8 text has
        # stand for them, since xgrammar never allows a token without any.
        texts = [
            b"\xff%d" % token if tokenizer.is_control(token) else tokenizer.token_bytes(token)
            for token in range(min(self._vocab_size, tokenizer.vocab_size))
        ]
        info = library.TokenizerInfo(
            texts,
            library.VocabType.RAW,
            vocab_size=self._vocab_size,
            stop_token_ids=sorted(token for token in tokenizer.eos_ids if token < self._vocab_size),
        )
        return library.GrammarCompiler(
            info, max_threads=1, cache_limit_bytes=CACHE_BYTES, enable_dynamic_compilation=True
        )


def _named_tokens(part: Any) -> Iterator[int]:
    """The ids that a structural tag names."""
    if isinstance(part, list):
        for one in part:
            yield from _named_tokens(one)
    elif isinstance(part, dict):
        if part.get("type") == "token":
            yield part["token"]
        for key in ("format", "elements", "content"):
            yield from _named_tokens(part.get(key))


def choice_grammar(choices: list[str]) -> str:
    """An EBNF grammar of these texts."""
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def reason_of(error: Exception) -> str:
    """xgrammar's reason as one line, without the place in its sources."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reason = _WHERE.sub("", lines[0]).strip().rstrip(".")
    return reason[:MAX_REASON] or "xgrammar cannot compile it"
