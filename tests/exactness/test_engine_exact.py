"""A reply depends on its checkpoint, prompt, sampling and seed, and on nothing else that the engine does meanwhile."""

import time
from pathlib import Path

import numpy as np
import pytest

from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.api import default_seed
from jaxfold.runtime.api import token_sha
from tests.tiny_engines import CONTEXT
from tests.tiny_engines import Ask
from tests.tiny_engines import Client
from tests.tiny_engines import tiny_engine

SAMPLINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.8, top_k=40, top_p=0.9, seed=7),
    SamplingParams(temperature=1.3, top_p=0.7, min_p=0.02, seed=(1 << 63) - 1),
    SamplingParams(temperature=0.9, repeat_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3, seed=3),
    SamplingParams(temperature=0.0, repeat_penalty=1.5, penalty_last_n=4),
    SamplingParams(temperature=1.0, logit_bias=((3, 6.0), (5, -100.0)), seed=11),
)


def prompt(seed: int, length: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.random.default_rng(seed).integers(0, 256, length))


def mixed(count: int, base: int = 0) -> list[Ask]:
    """Requests of different lengths and settings; some longer than a chunk, some across a key block."""
    lengths = (5, 40, 70, 150, 290, 1, 33, 200)
    return [
        Ask(prompt(base + i, lengths[i % len(lengths)]), 18 + 5 * (i % 4), SAMPLINGS[i % len(SAMPLINGS)])
        for i in range(count)
    ]


def test_concurrent_equals_solo(client: Client, fresh: Client) -> None:
    asks = mixed(8)
    # The counter is the process's: engines that other tests started since then count too.
    before = client.engine.snapshot().compiles_after_ready
    alone = [fresh.run(ask).ids for ask in asks]
    assert [reply.ids for reply in client.together(asks)] == alone
    assert [reply.ids for reply in client.together(asks[::-1])] == alone[::-1]
    assert client.engine.snapshot().compiles_after_ready == before


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_warm_prefix_equals_cold(client: Client, fresh: Client, sampling: SamplingParams) -> None:
    first = Ask(prompt(100, 90), 30, sampling)
    cold = fresh.run(first)
    runs = [client.run(first) for _ in range(3)]
    assert [run.ids for run in runs] == [cold.ids] * 3
    assert runs[2].stats().cached_tokens == 80
    follow = Ask((*first.prompt, *cold.ids, *prompt(101, 30)), 20, sampling)
    warm = client.run(follow)
    assert warm.ids == fresh.run(follow).ids
    # The reply's own pages serve too: they hold what a prefill would have computed.
    if client.engine.info.exactness == "A":
        assert warm.stats().cached_tokens == (90 + 29) // 16 * 16


def test_a_preempted_reply_is_repeated_exactly(client: Client, fresh: Client) -> None:
    back = [Ask(prompt(200 + i, 60), 120, SAMPLINGS[i], background=True) for i in range(3)]
    front = [Ask(prompt(210 + i, 20), 8) for i in range(3)]
    before = client.engine.snapshot().preemptions_total
    slow = [client.start(ask) for ask in back]
    while min(len(reply.ids) for reply in slow) < 10:
        time.sleep(0.001)
    quick = client.together(front)
    assert [reply.ids for reply in quick] == [fresh.run(ask).ids for ask in front]
    assert sum(reply.stats().preemptions for reply in slow) > 0
    assert client.engine.snapshot().preemptions_total > before
    assert [reply.ids for reply in slow] == [fresh.run(ask).ids for ask in back]


def test_running_out_of_pages_changes_no_token(family: str, programs_dir: Path, fresh: Client) -> None:
    engine = tiny_engine(family, programs_dir, short=True)
    asks = [Ask(prompt(300 + i, 150), 100, SAMPLINGS[i]) for i in range(4)]
    try:
        small = Client(engine)
        replies = small.together(asks)
        assert [reply.ids for reply in replies] == [fresh.run(ask).ids for ask in asks]
        assert family == "gemma3" or engine.snapshot().preemptions_total > 0
        wait_idle(small)
    finally:
        engine.close()


def test_the_loops_agree(family: str, programs_dir: Path, client: Client) -> None:
    plain = tiny_engine(family, programs_dir, overlap=False)
    stop = frozenset(range(0, 256, 9))
    asks = [Ask(ask.prompt, ask.tokens, ask.sampling, stop_ids=stop) for ask in mixed(8, base=50)]
    try:
        expected = [reply.ids for reply in Client(plain).together(asks)]
    finally:
        plain.close()
    replies = client.together(asks)
    assert [reply.ids for reply in replies] == expected
    ended = [reply for reply in replies if reply.ids[-1] in stop]
    assert ended, "no reply met a stop id: the test shows nothing"
    for reply in replies:
        assert not set(reply.ids[:-1]) & stop
        assert reply.stats().token_sha == token_sha(reply.ids)
        assert reply.stats().completion_tokens == len(reply.ids)


def test_default_seed_comes_from_the_prompt(client: Client) -> None:
    ask = Ask(prompt(400, 12), 16, SamplingParams(temperature=1.0))
    reply = client.run(ask)
    seed = default_seed(ask.prompt)
    assert reply.stats().seed == seed
    assert client.run(Ask(ask.prompt, 16, SamplingParams(temperature=1.0, seed=seed))).ids == reply.ids
    others = {tuple(client.run(Ask(ask.prompt, 16, SamplingParams(seed=s))).ids) for s in range(4)}
    assert len(others) == 4


def test_salted_prompts_share_nothing(client: Client) -> None:
    ask = Ask(prompt(500, 100), 4, salt="one")
    client.run(ask)
    assert client.run(ask).stats().cached_tokens == 96
    assert client.run(Ask(ask.prompt, 4, salt="two")).stats().cached_tokens == 0


def test_every_length_up_to_the_window(client: Client, fresh: Client) -> None:
    for length in (1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 255, 256, 257, CONTEXT - 2, CONTEXT - 1):
        ask = Ask(prompt(600, length), min(3, CONTEXT - length))
        assert client.run(ask).ids == fresh.run(ask).ids, length


def wait_idle(client: Client) -> None:
    """The engine checks its books when it comes to rest; a leak would stop it."""
    for _ in range(2000):
        if client.engine.idle:
            return
        time.sleep(0.005)
    raise AssertionError("the engine did not come to rest")


@pytest.fixture(autouse=True)
def books_balance(client: Client) -> None:
    yield
    wait_idle(client)
    assert client.engine.healthy
