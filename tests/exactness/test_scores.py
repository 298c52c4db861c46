"""Log-probabilities: those of the raw logits, the same in any company, and without a change to the reply."""

import time
from dataclasses import replace

import numpy as np
import pytest

from jaxfold.research import load
from jaxfold.runtime.api import MAX_LOGPROBS
from jaxfold.runtime.api import TokenScore
from tests.exactness.test_engine_exact import SAMPLINGS
from tests.exactness.test_engine_exact import mixed
from tests.exactness.test_engine_exact import prompt
from tests.exactness.test_engine_exact import wait_idle
from tests.tiny_engines import TINY
from tests.tiny_engines import Ask
from tests.tiny_engines import Client


def softmax_of(family: str, ids: tuple[int, ...]) -> np.ndarray:
    """Log-probabilities float64[len(ids), vocab] by the model alone, with numpy."""
    model = load(TINY / family)
    logits, _ = model.prefill(model.new_cache(), np.asarray(ids, np.int32), 0, 0, 1)
    row = np.asarray(logits).astype(np.float64)
    row -= row.max(axis=1, keepdims=True)
    return row - np.log(np.exp(row).sum(axis=1, keepdims=True))


def test_prompt_and_reply_against_the_model(family: str, fresh: Client) -> None:
    ask = Ask(prompt(800, 70), 6, SAMPLINGS[4], logprobs=5, score_prompt=True)
    reply = fresh.run(ask)
    expected = softmax_of(family, (*ask.prompt, *reply.ids))
    scores = [*reply.prompt_scores, *reply.scores]
    assert len(reply.prompt_scores) == 69 and len(reply.scores) == len(reply.ids)
    for place, (token, score) in enumerate(zip((*ask.prompt[1:], *reply.ids), scores, strict=True)):
        row = expected[place]
        assert score.logprob == pytest.approx(row[token], abs=1e-6) and score.logprob <= 0
        assert [logprob for _, logprob in score.top] == pytest.approx(sorted(row)[:-6:-1], abs=1e-6)
        assert [row[other] for other, _ in score.top] == pytest.approx(sorted(row)[:-6:-1], abs=1e-6)


def test_company_and_drafts_change_no_score(client: Client, fresh: Client) -> None:
    asks = [replace(ask, logprobs=i % 3, score_prompt=i % 2 == 0) for i, ask in enumerate(mixed(8, base=820))]
    alone = [fresh.run(ask) for ask in asks]
    before = client.engine.snapshot().compiles_after_ready
    together = client.together(asks)
    again = client.together(asks[::-1])[::-1]
    plain = [fresh.run(replace(ask, logprobs=None, score_prompt=False)).ids for ask in asks]
    for ask, one, other, third, ids in zip(asks, alone, together, again, plain, strict=True):
        assert one.ids == other.ids == third.ids == ids
        assert one.scores == other.scores == third.scores and len(one.scores) == len(ids)
        assert one.prompt_scores == other.prompt_scores == third.prompt_scores
        assert len(one.prompt_scores) == (len(ask.prompt) - 1 if ask.score_prompt else 0)
    assert client.engine.snapshot().compiles_after_ready == before


def test_a_reply_scores_as_the_prompt_it_becomes(client: Client) -> None:
    ask = Ask(prompt(840, 50), 40, SAMPLINGS[2], logprobs=2)
    reply = client.run(ask)
    whole = client.run(Ask((*ask.prompt, *reply.ids), 0, logprobs=2, score_prompt=True))
    assert whole.ids == [] and whole.scores == []
    assert whole.stats().completion_tokens == 0 and whole.stats().cached_tokens == 0
    if client.engine.info.exactness == "A":
        assert whole.prompt_scores[49:] == reply.scores


def test_a_preempted_reply_sends_each_score_once(client: Client, fresh: Client) -> None:
    back = [
        Ask(prompt(860 + i, 100), 100, SAMPLINGS[i], background=True, logprobs=1, score_prompt=True) for i in range(3)
    ]
    slow = [client.start(ask) for ask in back]
    while min(len(reply.ids) for reply in slow) < 10:
        time.sleep(0.001)
    client.together([Ask(prompt(870 + i, 20), 8) for i in range(3)])
    expected = [fresh.run(ask) for ask in back]
    assert sum(reply.stats().preemptions for reply in slow) > 0
    for reply, one in zip(slow, expected, strict=True):
        assert (reply.ids, reply.scores, reply.prompt_scores) == (one.ids, one.scores, one.prompt_scores)


def test_labels(family: str, client: Client, fresh: Client) -> None:
    asks = [Ask(prompt(880 + i, 30 + 50 * i), 0, labels=(5, 250, 5, *range(i))) for i in range(5)]
    replies = client.together(asks)
    for ask, reply in zip(asks, replies, strict=True):
        row = softmax_of(family, ask.prompt)[-1]
        assert reply.ids == [] and reply.labels == pytest.approx(row[list(ask.labels)], abs=1e-6)
        assert fresh.run(ask).labels == client.run(ask).labels == reply.labels


def test_scores_of_one_token(client: Client) -> None:
    reply = client.run(Ask((7,), 0, logprobs=3, score_prompt=True))
    assert reply.prompt_scores == [] and reply.ids == []
    reply = client.run(Ask((7,), 1, logprobs=MAX_LOGPROBS))
    (score,) = reply.scores
    assert isinstance(score, TokenScore) and len(score.top) == MAX_LOGPROBS and score.top[0][0] == reply.ids[0]


@pytest.mark.parametrize(
    "ask",
    [Ask((1,), 0), Ask((1,), 1, logprobs=21), Ask((1,), 1, logprobs=-1), Ask((1,), 1, labels=(1 << 20,))],
    ids=["nothing", "too many", "negative", "label"],
)
def test_what_makes_no_sense(client: Client, ask: Ask) -> None:
    with pytest.raises(ValueError):
        client.start(ask)


@pytest.fixture(autouse=True)
def books_balance(client: Client) -> None:
    yield
    wait_idle(client)
    assert client.engine.healthy
