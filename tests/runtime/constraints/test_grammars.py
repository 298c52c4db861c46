"""Grammars over a vocabulary: masks, control tokens, reasons, and limits of time and number."""

import json
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from jaxfold.runtime.api import GrammarError
from jaxfold.runtime.api import GrammarSpec
from jaxfold.runtime.constraints import grammars as module
from jaxfold.runtime.constraints.grammars import XGrammars
from jaxfold.runtime.constraints.lane import allows
from tests.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
# The model has more rows than the tokenizer has tokens, as many do.
VOCAB = 300
WORDS = -(-VOCAB // 32)
END = next(iter(TOKENIZER.eos_ids))


@pytest.fixture
def grammars() -> Iterator[XGrammars]:
    found = XGrammars(TOKENIZER, VOCAB)
    yield found
    found.close()


def allowed(matcher: object) -> set[int]:
    mask = np.zeros(WORDS, np.int32)
    matcher.fill(mask)  # type: ignore[attr-defined]
    return {token for token in range(32 * WORDS) if allows(mask, token)}


def test_masks_follow_the_reply(grammars: XGrammars) -> None:
    matcher = grammars.compile(GrammarSpec("regex", "ab|ac")).matcher()
    assert allowed(matcher) == {ord("a")} and not matcher.complete
    assert not matcher.accept(ord("b")) and matcher.accept(ord("a"))
    assert allowed(matcher) == {ord("b"), ord("c")}
    assert matcher.accept(ord("c")) and matcher.complete and allowed(matcher) == {END}
    matcher.rollback(2)
    assert allowed(matcher) == {ord("a")}


@pytest.mark.parametrize(
    "spec",
    [GrammarSpec("regex", "[^x]*"), GrammarSpec("json_object"), GrammarSpec("ebnf", "root ::= [^x] root | [^x]")],
    ids=str,
)
def test_control_tokens_and_padding_are_no_text(grammars: XGrammars, spec: GrammarSpec) -> None:
    matcher = grammars.compile(spec).matcher()
    control = {token for token in range(TOKENIZER.vocab_size) if TOKENIZER.is_control(token)}
    for token in b'{"a':
        assert not allowed(matcher) & (control - {END} | set(range(TOKENIZER.vocab_size, 32 * WORDS)))
        matcher.accept(token)
    assert not any(matcher.accept(token) for token in control - {END})


def test_a_structural_tag_reaches_the_control_tokens_that_it_names(grammars: XGrammars) -> None:
    start = TOKENIZER.special_tokens["<|im_start|>"]
    parts = [{"type": "token", "token": start}, {"type": "any_text", "excludes": ["!"]}]
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": parts}}
    matcher = grammars.compile(GrammarSpec("structural_tag", json.dumps(tag))).matcher()
    assert allowed(matcher) == {start} and matcher.accept(start)
    assert TOKENIZER.special_tokens["<|endoftext|>"] not in allowed(matcher) and ord("x") in allowed(matcher)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (GrammarSpec("ebnf", "root ::= nope"), "nope"),
        (GrammarSpec("ebnf", "("), ""),
        (GrammarSpec("regex", "(a"), "position"),
        (GrammarSpec("json_schema", '{"type": "banana"}'), "banana"),
        (GrammarSpec("structural_tag", "{}"), ""),
    ],
    ids=str,
)
def test_reasons_are_one_line(grammars: XGrammars, spec: GrammarSpec, words: str) -> None:
    with pytest.raises(GrammarError) as caught:
        grammars.compile(spec)
    reason = str(caught.value)
    assert reason and words in reason and "\n" not in reason and "cpp" not in reason and len(reason) <= 300


def test_what_takes_too_long_is_given_up(grammars: XGrammars, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = threading.Event()
    monkeypatch.setattr(module, "SECONDS", 0.05)
    monkeypatch.setattr(grammars, "_compile", lambda spec: hang.wait(20))
    for _ in range(module.THREADS):
        with pytest.raises(GrammarError, match="more than"):
            grammars.compile(GrammarSpec("json_object"))
    # Nothing waits behind what hangs.
    with pytest.raises(GrammarError, match="try again"):
        grammars.compile(GrammarSpec("json_object"))
    hang.set()
    monkeypatch.undo()
    deadline = time.monotonic() + 20
    while not grammars._slots.acquire(blocking=False):
        assert time.monotonic() < deadline
    grammars._slots.release()
    assert grammars.compile(GrammarSpec("json_object")).matcher()


def test_a_closed_compiler_says_so(grammars: XGrammars) -> None:
    grammars.close()
    with pytest.raises(GrammarError, match="shutting down"):
        grammars.compile(GrammarSpec("json_object"))
