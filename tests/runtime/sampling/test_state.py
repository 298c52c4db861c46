"""Lane state: penalties and bias against a plain count of the reply, windows, resets, padding."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.sampling import reference
from jaxfold.runtime.sampling.rows import bias_arrays
from jaxfold.runtime.sampling.rows import prepare
from jaxfold.runtime.sampling.rows import rows_from
from jaxfold.runtime.sampling.shards import shard_of
from jaxfold.runtime.sampling.state import adjust
from jaxfold.runtime.sampling.state import commit
from jaxfold.runtime.sampling.state import new_state
from jaxfold.runtime.sampling.state import reset_slot

VOCAB, ROWS, HISTORY = 2987, 16, 32

reset = jax.jit(reset_slot, static_argnames="axis")

PENALTIES = [
    SamplingParams(repeat_penalty=1.3, penalty_last_n=4),
    SamplingParams(repeat_penalty=0.7, presence_penalty=0.3, penalty_last_n=1),
    SamplingParams(frequency_penalty=0.37, penalty_last_n=-1),
    SamplingParams(frequency_penalty=0.1, presence_penalty=-0.5, penalty_last_n=HISTORY),
    SamplingParams(repeat_penalty=1.1, frequency_penalty=0.3, penalty_last_n=1000),
    SamplingParams(temperature=0.0, repeat_penalty=1.5, penalty_last_n=0),
    SamplingParams(temperature=0.0, presence_penalty=2.0, penalty_last_n=3),
    SamplingParams(top_k=5, logit_bias=((3, 4.0), (7, -100.0)), presence_penalty=1.0),
]


def test_replies_match_a_plain_count(draws):
    """Thirty steps of eight replies with penalties; each token is the numpy rule's over the reply's own window."""
    rng = np.random.default_rng(0)
    state = new_state(ROWS, VOCAB, HISTORY)
    bias = np.zeros((len(PENALTIES), VOCAB), np.float32)
    for slot, params in enumerate(PENALTIES):
        ids, values = bias_arrays(params.logit_bias)
        state = reset(state, np.int32(slot), np.int32(0), ids, values)
        for token, value in params.logit_bias:
            bias[slot, token] = value
    prepared = [prepare(params, 40 + slot) for slot, params in enumerate(PENALTIES)]
    replies: list[list[int]] = [[] for _ in PENALTIES]
    # Few likely tokens, so that repeats are common.
    logits = np.full((ROWS, VOCAB), -20.0, np.float32)
    for step in range(30):
        logits[:, :12] = rng.normal(size=(ROWS, 12))
        rows = rows_from(prepared, [100 + step] * len(prepared), list(range(len(prepared))), ROWS)
        tokens, state, _ = draws.step(logits, state, rows)
        np.testing.assert_array_equal(np.asarray(state.last)[: len(prepared)], tokens[: len(prepared)])
        for slot, params in enumerate(PENALTIES):
            n = params.penalty_last_n
            window = replies[slot] if n < 0 else replies[slot][max(len(replies[slot]) - n, 0) :]
            counts = np.bincount(np.array(window, np.int64), minlength=VOCAB).astype(np.int32)
            expected = reference.draw_row(logits[slot], params, 40 + slot, 100 + step, counts, bias[slot])
            assert tokens[slot] == expected, (step, params)
            replies[slot].append(int(tokens[slot]))
    assert any(len(set(reply)) < len(reply) for reply in replies)
    assert 7 not in replies[7]
    np.testing.assert_array_equal(np.asarray(state.length)[:9], [30] * 8 + [0])


def windowed(draws, logits, replies, seed):
    """Replies drawn in verify windows of random widths, up to 16 rows a draw, with good, bad and half good drafts."""
    rng = np.random.default_rng(seed)
    prepared = [prepare(params, 40 + slot) for slot, params in enumerate(PENALTIES)]
    done: list[list[int]] = [[] for _ in PENALTIES]
    state, accepted = biased(), 0
    while any(len(one) < len(logits) for one in done):
        lanes, drafts, picture = [], [], np.full((ROWS, VOCAB), -20.0, np.float32)
        for slot in rng.permutation(len(PENALTIES)):
            at, room = len(done[slot]), ROWS - sum(1 + len(tokens) for tokens in drafts)
            if at == len(logits) or not room:
                continue
            tokens = replies[slot][at : at + int(rng.integers(0, min(room, 7)))][: len(logits) - at - 1]
            tokens = [int(rng.integers(12)) if rng.random() < 0.15 else token for token in tokens]
            first = ROWS - room
            # After a wrong draft a model gives other scores: anything must do.
            for column in range(1 + len(tokens)):
                right = tokens[:column] == replies[slot][at : at + column]
                picture[first + column, :12] = logits[at + column, slot] if right else rng.normal(size=12) * 9
            lanes.append(slot)
            drafts.append(tokens)
        rows = rows_from([prepared[i] for i in lanes], [100 + len(done[i]) for i in lanes], lanes, ROWS, drafts)
        drawn, state, _ = draws.step(picture, state, rows)
        first = 0
        for slot, tokens in zip(lanes, drafts, strict=True):
            mine = [int(token) for token in drawn[first : first + len(tokens) + 1]]
            kept = next((i for i, token in enumerate(tokens) if token != mine[i]), len(tokens))
            accepted += kept
            done[slot] += mine[: kept + 1]
            first += len(tokens) + 1
    return done, state, accepted


def biased():
    """Fresh state with the bias of each of the replies."""
    state = new_state(ROWS, VOCAB, HISTORY)
    for slot, params in enumerate(PENALTIES):
        state = reset(state, np.int32(slot), np.int32(0), *bias_arrays(params.logit_bias))
    return state


@pytest.mark.parametrize("seed", range(6))
def test_verify_windows_draw_what_single_rows_draw(draws, seed):
    """Tokens and lane state are the serial ones, whatever was drafted: penalties of any window, bias, sampling."""
    rng = np.random.default_rng(seed)
    steps = HISTORY - 2
    logits = rng.normal(size=(steps, len(PENALTIES), 12)).astype(np.float32)
    prepared = [prepare(params, 40 + slot) for slot, params in enumerate(PENALTIES)]
    state, replies = biased(), [[] for _ in PENALTIES]
    for step in range(steps):
        picture = np.full((ROWS, VOCAB), -20.0, np.float32)
        picture[: len(PENALTIES), :12] = logits[step]
        rows = rows_from(prepared, [100 + step] * len(prepared), list(range(len(prepared))), ROWS)
        tokens, state, _ = draws.step(picture, state, rows)
        for slot, reply in enumerate(replies):
            reply.append(int(tokens[slot]))
    done, after, accepted = windowed(draws, logits, replies, seed)
    assert done == replies
    assert accepted > steps
    for name in ("counts", "bias", "last", "length"):
        np.testing.assert_array_equal(np.asarray(getattr(after, name)), np.asarray(getattr(state, name)), name)
    np.testing.assert_array_equal(np.asarray(after.history)[:, :steps], np.asarray(state.history)[:, :steps])


def test_adjusted_bits_are_those_of_numpy():
    """Divisions, products and subtractions are each rounded to float32 once, in the order of the rule."""
    rng = np.random.default_rng(1)
    params = [
        SamplingParams(repeat_penalty=1.1, presence_penalty=0.3, frequency_penalty=0.7),
        SamplingParams(frequency_penalty=0.1),
        SamplingParams(logit_bias=((0, 1.0),)),
        SamplingParams(),
    ]
    logits = (rng.normal(size=(4, 4096)) * 5).astype(np.float32)
    logits[:, :4] = [[-0.0, 3e38, -3e38, np.inf]]
    counts = rng.integers(0, 5, size=(4, 4096)).astype(np.int32)
    bias = np.where(rng.random((4, 4096)) < 0.1, rng.normal(size=(4, 4096)), 0).astype(np.float32)
    bias[[0, 1, 3]] = 0
    state = new_state(4, 4096, 8)._replace(counts=jnp.asarray(counts), bias=jnp.asarray(bias))
    rows = rows_from([prepare(p, 0) for p in params], [0] * 4, [0, 1, 2, 3], 4)
    with jax.enable_x64(True):
        program = jax.jit(lambda logits, state, rows: adjust(logits, state, rows, shard_of(4096, None, None)))
        got = np.asarray(program(jnp.asarray(logits), state, rows))
    for row, settings in enumerate(params):
        expected = reference.adjust(logits[row], settings, counts[row], bias[row])
        np.testing.assert_array_equal(got[row].view(np.int32), expected.view(np.int32))
    np.testing.assert_array_equal(got[3].view(np.int32), logits[3].view(np.int32))


def entered(tokens: list[int], window: int, history: int, width: int) -> np.ndarray:
    """Counts after `tokens` were entered one by one into slot 1 of two."""
    state = new_state(2, width, history)
    program = jax.jit(lambda state, tokens, rows: commit(state, tokens, rows, shard_of(width, None, None)))
    prepared = prepare(SamplingParams(repeat_penalty=2.0, penalty_last_n=window), 0)
    with jax.enable_x64(True):
        for position, token in enumerate(tokens):
            rows = rows_from([prepared], [position], [1], 2)
            state = program(state, jnp.asarray([token, 0], jnp.int32), rows)
    counts = np.asarray(state.counts)
    assert not counts[0].any(), "a padded row entered its token"
    assert list(np.asarray(state.last)) == [0, tokens[-1]]
    return counts[1]


@pytest.mark.parametrize("window", [-1, 1, 2, 5, 8, 20])
def test_the_window_holds_the_latest_tokens(window):
    """A ring of 8: windows up to 8 forget, longer ones can not lose a token of a reply that fits."""
    tokens = [int(token) for token in np.random.default_rng(2).integers(0, 4, size=8)] * (3 if 0 < window <= 8 else 1)
    expected = np.bincount(tokens if window < 0 else tokens[-window:], minlength=6)
    np.testing.assert_array_equal(entered(tokens, window, history=8, width=6), expected)


def test_reset_clears_one_slot_only():
    state = new_state(3, 40, 4)._replace(
        counts=jnp.ones((3, 40), jnp.int32), bias=jnp.ones((3, 40)), length=jnp.full(3, 9, jnp.int32)
    )
    ids, values = bias_arrays([(0, 1.5), (39, -2.0), (40, 7.0), (1 << 30, 7.0)])
    after = reset(state, np.int32(1), np.int32(17), ids, values)
    expected = np.zeros(40, np.float32)
    expected[[0, 39]] = [1.5, -2.0]
    np.testing.assert_array_equal(np.asarray(after.bias), np.stack([np.ones(40), expected, np.ones(40)]))
    np.testing.assert_array_equal(np.asarray(after.counts).sum(axis=1), [40, 0, 40])
    np.testing.assert_array_equal(np.asarray(after.length), [9, 0, 9])
    np.testing.assert_array_equal(np.asarray(after.last), [0, 17, 0])


def test_a_replayed_reply_is_the_undisturbed_one(draws):
    """Reset the slot in the middle of a reply, draw again from its start beside another reply."""
    rng = np.random.default_rng(3)
    logits = np.zeros((12, ROWS, VOCAB), np.float32)
    logits[:, :, :20] = rng.normal(size=(12, ROWS, 20)) + 8
    logits[:, 5] = logits[:, 2]
    mine = prepare(SamplingParams(frequency_penalty=0.9, repeat_penalty=1.2, penalty_last_n=6), 77)
    other = prepare(SamplingParams(), 78)
    ids, values = bias_arrays(())

    def reply(state, slot, steps, beside):
        tokens = []
        for step in range(steps):
            chosen = [mine, other] if beside else [mine]
            rows = rows_from(chosen, [step] * len(chosen), [slot, 9][: len(chosen)], ROWS)
            picture = logits[step].copy()
            picture[0] = logits[step, 2]
            drawn, state, _ = draws.step(picture, state, rows)
            tokens.append(int(drawn[0]))
        return tokens, state

    undisturbed, _ = reply(new_state(ROWS, VOCAB, HISTORY), 2, 12, False)
    _, state = reply(new_state(ROWS, VOCAB, HISTORY), 5, 7, True)
    state = reset(state, np.int32(5), np.int32(0), ids, values)
    replayed, _ = reply(state, 5, 12, True)
    assert replayed == undisturbed


def test_state_of_a_split_vocabulary_counts_and_biases_where_the_token_is():
    """Two devices with half the columns each hold together what one device holds."""
    mesh = jax.make_mesh((2,), ("vocab",), axis_types=(jax.sharding.AxisType.Auto,))
    columns, same = jax.P(None, "vocab"), jax.P()
    kinds = (columns, columns, same, same, same)
    state = new_state(2, 10, 4)
    wrap = partial(jax.shard_map, mesh=mesh, check_vma=False)
    kind = type(state)(*kinds)

    def enter(state, tokens, rows):
        return commit(state, tokens, rows, shard_of(5, 10, "vocab"))

    ids, values = bias_arrays([(4, 1.0), (5, 2.0), (9, 3.0)])
    rows = rows_from([prepare(SamplingParams(presence_penalty=1.0, penalty_last_n=1), 0)] * 2, [0, 0], [0, 1], 2)
    with jax.enable_x64(True):
        resetting = partial(reset_slot, axis="vocab")
        state = jax.jit(wrap(resetting, in_specs=(kind, same, same, same, same), out_specs=kind))(
            state, np.int32(1), np.int32(0), ids, values
        )
        program = jax.jit(wrap(enter, in_specs=(kind, same, same), out_specs=kind))
        for tokens in ([4, 5], [5, 9]):
            state = program(state, jnp.asarray(tokens, jnp.int32), rows)
    np.testing.assert_array_equal(np.asarray(state.bias)[1], [0, 0, 0, 0, 1, 2, 0, 0, 0, 3])
    np.testing.assert_array_equal(np.argwhere(np.asarray(state.counts)), [[0, 5], [1, 9]])
