"""A constrained reply holds to its grammar, and is the same drafted, in company, replayed and alone."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jaxfold.runtime.api import Failed
from jaxfold.runtime.api import Grammar
from jaxfold.runtime.api import GrammarSpec
from jaxfold.runtime.api import Guide
from jaxfold.runtime.api import Matcher
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.api import Thinking
from jaxfold.runtime.constraints.grammars import XGrammars
from tests.byte_tokenizer import ByteTokenizer
from tests.exactness.test_engine_exact import SAMPLINGS
from tests.exactness.test_engine_exact import mixed
from tests.exactness.test_engine_exact import prompt
from tests.exactness.test_engine_exact import wait_idle
from tests.tiny_engines import Ask
from tests.tiny_engines import Client
from tests.tiny_engines import FreeWindows
from tests.tiny_engines import tiny_engine

# One id that ends replies, and two that stand for the markers of a reasoning block.
END, OPEN, CLOSE = 0, 1, 2
SPECS = (
    GrammarSpec("regex", "(ab|ba){2,6}c"),
    GrammarSpec("json_schema", '{"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"]}'),
    GrammarSpec("choice", '["alpha", "beta", "gamma ray"]'),
    GrammarSpec("ebnf", 'root ::= "x" root "y" | "z"'),
)
ENDS = frozenset({END})


@pytest.fixture(scope="session")
def grammars() -> Iterator[XGrammars]:
    names = tuple(f"<{i}>" for i in range(3))
    found = XGrammars(Shifted(control=names, added=(), eos=names[:1], bos=None), 288)
    yield found
    found.close()


class Shifted(ByteTokenizer):
    """Bytes after three control tokens, so that tiny vocabularies hold the whole of ASCII."""

    def token_bytes(self, token_id: int) -> bytes:
        return super().token_bytes(token_id - 3) if token_id >= 3 else b""

    def is_control(self, token_id: int) -> bool:
        return token_id < 3

    @property
    def eos_ids(self) -> frozenset[int]:  # type: ignore[override]
        return ENDS

    @eos_ids.setter
    def eos_ids(self, value: frozenset[int]) -> None:
        pass


@pytest.fixture
def guides(grammars: XGrammars) -> list[Guide]:
    return [Guide(grammar=grammars.compile(spec), end_ids=ENDS) for spec in SPECS]


@pytest.fixture(scope="session")
def drafting(family: str, programs_dir: Path) -> Iterator[Client]:
    """An engine that drafts wherever it can."""
    engine = tiny_engine(family, programs_dir)
    assert engine.core.planner is not None
    engine.core.planner.costs = FreeWindows()
    yield Client(engine)
    engine.close()


def text_of(ids: list[int]) -> str:
    return bytes(token - 3 for token in ids if token >= 3).decode()


def matches(spec: GrammarSpec, text: str) -> bool:
    match spec.kind:
        case "regex":
            return re.fullmatch(spec.text, text) is not None
        case "json_schema":
            return isinstance(json.loads(text)["k"], int)
        case "choice":
            return text in json.loads(spec.text)
        case _:
            return re.fullmatch("(x*)z(y*)", text) is not None and text.count("x") == text.count("y")


def asks_for(guides: list[Guide], base: int, **fields: object) -> list[Ask]:
    """Requests of every setting, each grammar with several of them."""
    return [
        replace(ask, tokens=60, guide=guides[i % len(guides)], stop_ids=ENDS, **fields)  # type: ignore[arg-type]
        for i, ask in enumerate(mixed(8, base=base))
    ]


def test_replies_match_and_do_not_depend_on_company(guides: list[Guide], drafting: Client, fresh: Client) -> None:
    asks = asks_for(guides, 900)
    before = drafting.engine.snapshot()
    alone = [fresh.run(ask).ids for ask in asks]
    for i, ids in enumerate(alone):
        if ids[-1] == END:
            assert matches(SPECS[i % len(SPECS)], text_of(ids)), text_of(ids)
        else:
            assert len(ids) == 60
    assert sum(ids[-1] == END for ids in alone) >= 4, "hardly a reply came to its end: the test shows nothing"
    plain = mixed(4, base=940)
    free = [fresh.run(ask).ids for ask in plain]
    replies = drafting.together([*asks, *plain])
    assert [reply.ids for reply in replies] == [*alone, *free]
    undrafted = drafting.together([replace(ask, draft=False) for ask in asks])
    assert [reply.ids for reply in undrafted] == alone
    after = drafting.engine.snapshot()
    assert after.compiles_after_ready == before.compiles_after_ready


def test_drafts_inside_a_grammar(grammars: XGrammars, drafting: Client, fresh: Client) -> None:
    """A long repetition: the copies of it are drafted, verified under masks and taken."""
    guide = Guide(grammar=grammars.compile(GrammarSpec("regex", "(abcdefgh){6,12}")), end_ids=ENDS)
    for sampling in SAMPLINGS[:5]:
        ask = Ask(prompt(950, 20), 120, sampling, guide=guide, stop_ids=ENDS)
        reply = drafting.run(ask)
        assert reply.ids == fresh.run(ask).ids
        assert reply.stats().accepted > 20, "nothing was drafted: the test shows nothing"


def test_a_preempted_reply_follows_its_grammar_again(guides: list[Guide], client: Client, fresh: Client) -> None:
    endless = Guide(grammar=guides[3].grammar, end_ids=ENDS)
    long = [Ask(prompt(960 + i, 60), 120, SAMPLINGS[1], background=True, guide=endless) for i in range(3)]
    long = [
        replace(ask, sampling=SamplingParams(seed=i, logit_bias=((3 + ord("x"), 9.0),))) for i, ask in enumerate(long)
    ]
    slow = [client.start(ask) for ask in long]
    while min(len(reply.ids) for reply in slow) < 10:
        time.sleep(0.001)
    client.together([Ask(prompt(970 + i, 20), 8) for i in range(3)])
    assert [reply.stats().preemptions > 0 for reply in slow].count(True) > 0
    assert [reply.ids for reply in slow] == [fresh.run(ask).ids for ask in long]


def test_reasoning_comes_before_the_grammar(guides: list[Guide], client: Client, fresh: Client) -> None:
    forced = SamplingParams(temperature=1.0, logit_bias=((CLOSE, 6.0), (END, 100.0)), seed=5)
    thinking = Thinking(opened=True, start=OPEN, end=(CLOSE,))
    asks = [
        Ask(prompt(980 + i, 30), 80, replace(forced, seed=i), guide=replace(guide, thinking=thinking), stop_ids=ENDS)
        for i, guide in enumerate(guides)
    ]
    for i, reply in enumerate(client.together(asks)):
        assert reply.ids == fresh.run(asks[i]).ids
        # The end token is likely everywhere, and yet the reply goes on until its answer is whole.
        assert CLOSE in reply.ids
        answer = reply.ids[reply.ids.index(CLOSE) + 1 :]
        assert answer[-1] != END or matches(SPECS[i], text_of(answer))


@pytest.mark.parametrize("budget", [1, 2, 7])
def test_a_budget_closes_the_reasoning(guides: list[Guide], client: Client, fresh: Client, budget: int) -> None:
    never = SamplingParams(temperature=1.0, logit_bias=((CLOSE, -100.0),), seed=5)
    close = (13, CLOSE)
    for guide in (Guide(end_ids=ENDS), guides[0]):
        thinking = Thinking(opened=True, start=OPEN, end=(CLOSE,), budget=budget, close=close)
        ask = Ask(prompt(990, 30), 40, never, guide=replace(guide, thinking=thinking), stop_ids=ENDS)
        reply = client.run(ask)
        assert tuple(reply.ids[budget - 1 : budget + 1]) == close and CLOSE not in reply.ids[: budget - 1]
        assert reply.ids == fresh.run(ask).ids
        if guide.grammar is not None and reply.ids[-1] == END:
            assert matches(SPECS[0], text_of(reply.ids[budget + 1 :]))


def test_a_grammar_may_let_go(grammars: XGrammars, client: Client) -> None:
    guide = Guide(grammar=grammars.compile(GrammarSpec("ebnf", 'root ::= "call(" [0-9] ")"')), then_free=True)
    reply = client.run(Ask(prompt(995, 10), 30, SAMPLINGS[1], guide=guide))
    assert re.match(r"call\([0-9]\)", text_of(reply.ids[:7])) and len(reply.ids) == 30


class Broken:
    """A grammar whose matcher fails at some point."""

    def __init__(self, where: str) -> None:
        self.where = where

    def matcher(self) -> Matcher:
        if self.where == "start":
            raise RuntimeError("no matcher")
        return self

    def fill(self, mask: np.ndarray) -> None:
        if self.where == "fill":
            raise RuntimeError("no mask")
        mask[:] = 0 if self.where == "nothing" else -1

    def accept(self, token: int) -> bool:
        return self.where != "accept"

    def rollback(self, count: int) -> None:
        pass

    complete = False


@pytest.mark.parametrize("where", ["start", "fill", "nothing", "accept"])
def test_a_grammar_that_fails_ends_its_own_reply_only(client: Client, fresh: Client, where: str) -> None:
    others = [Ask(prompt(1000 + i, 40), 30, SAMPLINGS[i]) for i in range(2)]
    running = [client.start(ask) for ask in others]
    grammar: Grammar = Broken(where)
    reply = client.start(Ask(prompt(1005, 20), 20, guide=Guide(grammar=grammar)))
    assert reply.done.wait(60) and isinstance(reply.end, Failed)
    assert [one.stats() and one.ids for one in running] == [fresh.run(ask).ids for ask in others]


@pytest.fixture(autouse=True)
def books_balance(client: Client) -> Iterator[None]:
    yield
    wait_idle(client)
    assert client.engine.healthy
