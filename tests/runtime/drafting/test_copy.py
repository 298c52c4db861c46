"""Copies: what is proposed, how sure it is, and what is remembered."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfold.runtime.drafting import copy
from jaxfold.runtime.drafting.base import Proposal
from jaxfold.runtime.drafting.copy import CopyProposer

TEXT = tuple(int(i) for i in np.random.default_rng(0).permutation(5000)[:300])


def ready(prompt: tuple[int, ...], *replies: tuple[int, ...]) -> CopyProposer:
    proposer = CopyProposer(prompt)
    proposer.absorb(())
    for tokens in replies:
        proposer.absorb(tokens)
    return proposer


def drafts(found: Proposal | None) -> tuple[int, ...]:
    return () if found is None else found.tokens


def test_it_copies_what_followed_and_grows_sure() -> None:
    proposer = ready(TEXT, TEXT[100:103])
    assert proposer.propose(7, 0) is None, "three tokens agree, four are asked for"
    proposer.absorb(TEXT[103:104])
    first = proposer.propose(7, 0)
    assert first is not None and first.tokens == TEXT[104:111] and first.source == "copy"
    proposer.absorb(TEXT[104:130])
    later = proposer.propose(3, 0)
    assert later is not None and later.tokens == TEXT[130:133]
    assert 0 < first.confidence < later.confidence < 1


def test_a_token_on_its_way_is_taken_to_be_the_expected_one() -> None:
    proposer = ready(TEXT, TEXT[50:53])
    assert drafts(proposer.propose(5, 1)) == TEXT[54:59]
    proposer.absorb((9999,))
    assert proposer.propose(5, 0) is None and proposer.propose(5, 1) is None


def test_an_edit_is_left_behind_after_a_few_tokens() -> None:
    proposer = ready(TEXT, TEXT[:40])
    proposer.absorb((7001, 7002))
    assert proposer.propose(7, 0) is None
    proposer.absorb(TEXT[42:46])
    assert drafts(proposer.propose(7, 0)) == TEXT[46:53]


def test_the_longer_run_wins_over_the_latest() -> None:
    """The last three tokens stood twice before; only the earlier place agrees further back."""
    head, tail = TEXT[:12], TEXT[20:40]
    prompt = (*head, *tail, 1, *head[-3:], *TEXT[200:220])
    proposer = ready(prompt, head)
    assert drafts(proposer.propose(5, 0)) == tail[:5]


def test_a_loop_goes_on_with_itself() -> None:
    proposer = ready((5000,), (1, 2, 3, 1, 2, 3, 1, 2))
    assert drafts(proposer.propose(7, 0)) == (3, 1, 2, 3, 1, 2, 3)
    assert drafts(proposer.propose(4, 1)) == (1, 2, 3, 1)


def test_a_long_prompt_is_indexed_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "BATCH", 50)
    proposer = CopyProposer(TEXT)
    rounds = 0
    proposer.absorb(TEXT[10:20])
    while proposer.propose(4, 0) is None:
        proposer.absorb(())
        rounds += 1
    assert rounds == 5
    assert drafts(proposer.propose(4, 0)) == TEXT[20:24]


def test_old_runs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "REACH", 100)
    random = np.random.default_rng(1)
    proposer = ready((1,), *((int(i),) for i in random.integers(0, 1 << 20, 1000)))
    assert all(len(ends) <= 102 for ends in proposer._ends)
    # What is repeated stays known.
    proposer = ready((1,), *[(i % 7,) for i in range(1000)])
    assert drafts(proposer.propose(3, 0)) == (1000 % 7, 1001 % 7, 1002 % 7)


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=120),
    cut=st.integers(1, 120),
    limit=st.integers(0, 9),
    ahead=st.integers(0, 1),
)
def test_whatever_is_proposed_followed_the_same_tokens(tokens: list[int], cut: int, limit: int, ahead: int) -> None:
    proposer = ready(tuple(tokens[:cut]), *((token,) for token in tokens[cut:]))
    found = proposer.propose(limit, ahead)
    if found is None:
        return
    assert len(found.tokens) == limit
    assert 0 < found.confidence < 1
    # Somewhere before its end the text holds its last tokens, then the guess on the way, then the drafts.
    needed = copy.LEAST - ahead
    tail = tokens[-needed:]
    places = [i for i in range(needed, len(tokens)) if tokens[i - needed : i] == tail]

    def follows(place: int) -> tuple[int, ...]:
        longer = list(tokens)
        for i in range(place, place + limit + ahead):
            longer.append(longer[i])
        return tuple(longer[len(tokens) + ahead :])

    assert found.tokens in {follows(place) for place in places}
