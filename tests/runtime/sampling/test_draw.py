"""The draw on the device: pruned, whole and split agree with each other exactly, and with the numpy rule."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.sampling import draw as drawing
from jaxfold.runtime.sampling import rows as columns
from jaxfold.runtime.sampling.reference import draw_row
from jaxfold.runtime.sampling.rows import prepare
from jaxfold.runtime.sampling.rows import rows_from
from jaxfold.runtime.sampling.state import new_state

VOCAB, ROWS, HISTORY = 2987, 16, 32


def test_pruned_is_whole_on_hard_rows(draws, hard_batches):
    """Every path is taken, and none changes a token."""
    taken = np.zeros(4, np.int64)
    for number, batch in enumerate(hard_batches):
        tokens, paths = draws.pruned(batch)
        expected = draws.whole(batch)
        wrong = np.flatnonzero(tokens != expected)
        assert wrong.size == 0, (number, [(batch.params[i], tokens[i], expected[i], paths[i]) for i in wrong])
        taken += np.bincount(paths, minlength=4)
    assert (taken > 25).all(), taken


def test_draw_is_the_numpy_rule_on_hard_rows(draws, hard_batches):
    for batch in hard_batches[:12]:
        tokens, _ = draws.pruned(batch)
        expected = [
            draw_row(logits, params, seed, position)
            for logits, params, seed, position in zip(
                batch.logits, batch.params, batch.seeds, batch.positions, strict=True
            )
        ]
        np.testing.assert_array_equal(tokens, expected)


def test_two_vocabulary_halves_draw_the_same_tokens(draws, hard_batches):
    taken = np.zeros(4, np.int64)
    for batch in hard_batches[:30]:
        tokens, paths = draws.split(batch)
        np.testing.assert_array_equal(tokens, draws.whole(batch))
        taken += np.bincount(paths, minlength=4)
    assert (taken > 12).all(), taken


SETTINGS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.8, top_k=40, top_p=0.9),
    SamplingParams(top_p=0.95),
    SamplingParams(top_p=0.1),
    SamplingParams(temperature=2.0, top_p=0.999),
    SamplingParams(min_p=0.05),
    SamplingParams(top_k=200),
    SamplingParams(top_k=300, top_p=0.9),
    SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
    SamplingParams(top_p=0.95, min_p=0.01),
]


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_pruned_is_whole_on_ordinary_rows(draws, hard_batches, params):
    """Random rows, flat to peaked, under settings that people use."""
    rng = np.random.default_rng(1)
    for scale in (0.1, 1.0, 2.0, 3.0, 5.0):
        for start in range(0, 100, 20):
            logits = (rng.normal(size=(ROWS, VOCAB)) * scale).astype(np.float32)
            batch = replace(
                hard_batches[0],
                logits=logits,
                params=[params] * ROWS,
                seeds=list(range(ROWS)),
                positions=list(range(start, start + ROWS)),
            )
            np.testing.assert_array_equal(draws.pruned(batch)[0], draws.whole(batch))


def test_usual_settings_do_not_fall_back_to_the_whole_row(draws, hard_batches):
    rng = np.random.default_rng(2)
    whole = 0
    for start in range(20):
        logits = (rng.normal(size=(ROWS, VOCAB)) * 3.0).astype(np.float32)
        params = [SETTINGS[(start + row) % 3] for row in range(ROWS)]
        batch = replace(hard_batches[0], logits=logits, params=params, positions=list(range(start, start + ROWS)))
        whole += int((draws.pruned(batch)[1] == drawing.WHOLE).sum())
    assert whole <= 2


def test_a_row_does_not_depend_on_its_company(draws, hard_batches):
    """Alone, in another row, beside padding: the same token."""
    for batch in hard_batches[20:24]:
        together, _ = draws.pruned(batch)
        order = np.random.default_rng(3).permutation(ROWS)
        moved = replace(
            batch,
            logits=batch.logits[order],
            params=[batch.params[i] for i in order],
            seeds=[batch.seeds[i] for i in order],
            positions=[batch.positions[i] for i in order],
        )
        np.testing.assert_array_equal(draws.pruned(moved)[0], together[order])
        for row in (0, 7):
            alone = replace(
                batch,
                logits=np.roll(batch.logits, -row, axis=0),
                params=[batch.params[row]],
                seeds=[batch.seeds[row]],
                positions=[batch.positions[row]],
            )
            assert draws.pruned(alone)[0][0] == together[row]


def test_the_seed_and_the_position_key_the_draw(draws, hard_batches):
    logits = np.zeros((ROWS, VOCAB), np.float32)
    fixed = replace(hard_batches[0], logits=logits, params=[SamplingParams()] * ROWS, seeds=[5] * ROWS)
    by_position, _ = draws.pruned(replace(fixed, positions=list(range(ROWS))))
    by_seed, _ = draws.pruned(replace(fixed, seeds=list(range(ROWS)), positions=[3] * ROWS))
    assert len(set(by_position.tolist())) > ROWS // 2
    assert len(set(by_seed.tolist())) > ROWS // 2
    again, _ = draws.pruned(replace(fixed, positions=list(range(ROWS))))
    np.testing.assert_array_equal(again, by_position)


def test_draws_follow_the_distribution(draws, hard_batches):
    """Four tokens with known probabilities, drawn at 4,000 positions."""
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.full((ROWS, VOCAB), -np.inf, np.float32)
    logits[:, [11, 1200, 1201, 2986]] = np.log(probabilities)
    batch = replace(hard_batches[0], logits=logits, params=[SamplingParams()] * ROWS, seeds=[9] * ROWS)
    tokens = [
        draws.pruned(replace(batch, positions=list(range(start, start + ROWS))))[0] for start in range(0, 4000, ROWS)
    ]
    seen = np.bincount(np.concatenate(tokens), minlength=VOCAB)[[11, 1200, 1201, 2986]]
    deviation = np.sqrt(4000 * probabilities * (1 - probabilities))
    assert (np.abs(seen - 4000 * probabilities) < 4 * deviation).all(), seen


def test_one_row_of_a_small_vocabulary():
    """One row is widened on the way, and fewer columns than candidates are no special case."""
    rng = np.random.default_rng(4)
    program = jax.jit(drawing.draw)
    for position in range(60):
        logits = (rng.normal(size=(1, 70)) * 3).astype(np.float32)
        params = [*SETTINGS, SamplingParams(temperature=0.0), SamplingParams(top_k=68, top_p=0.99)][position % 12]
        with jax.enable_x64(True):
            out = program(jnp.asarray(logits), new_state(1, 70, 4), rows_from([prepare(params, 6)], [position], [0], 1))
        assert out.tokens.shape == out.paths.shape == (1,)
        assert int(out.tokens[0]) == draw_row(logits[0], params, 6, position), params
        assert int(out.state.last[0]) == int(out.tokens[0]) and int(out.state.counts[0, out.tokens[0]]) == 1


def test_tracing_without_64_bit_types_is_refused():
    rows = rows_from([prepare(SamplingParams(), 1)], [0], [0], 1)
    with pytest.raises(RuntimeError, match="enable_x64"):
        jax.eval_shape(drawing.draw, jnp.zeros((1, 64)), new_state(1, 64, 4), rows)


def test_scores_are_those_of_numpy_and_the_same_over_two_halves(draws, hard_batches):
    """Log-probabilities come from integer sums: their bits are the same however the vocabulary is split."""
    for batch in hard_batches[:12]:
        rows = batch.rows
        rows.words[:, columns.SCORED] = 1
        rows.words[::2, columns.TARGET] = np.arange(1, ROWS // 2 + 1) * 37
        tokens, one = draws.scored(batch, rows, halves=False)
        same, two = draws.scored(batch, rows, halves=True)
        np.testing.assert_array_equal(tokens, same)
        for mine, theirs in zip(one, two, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        logits = np.where(np.isnan(batch.logits), -np.inf, batch.logits.astype(np.float64))
        logits = np.minimum(logits, float(np.finfo(np.float32).max))
        top = logits.max(axis=1, keepdims=True)
        some = top[:, 0] > -np.inf
        expected = top[some, 0] + np.log(np.exp(logits[some] - top[some]).sum(axis=1))
        np.testing.assert_allclose(one.total[some], expected, rtol=1e-9, atol=1e-6)
        wanted = np.where(rows.words[:, columns.TARGET] > 0, rows.words[:, columns.TARGET] - 1, tokens)
        found = logits[np.arange(ROWS), wanted]
        np.testing.assert_allclose(one.chosen[some], found[some], atol=1e-30)


def test_masked_tokens_are_not_drawn_over_two_halves_either(draws, hard_batches):
    rng = np.random.default_rng(3)
    for batch in hard_batches[:12]:
        rows = batch.rows
        rows.words[:, columns.MASKED] = np.arange(ROWS) % 4 != 0
        allowed = rng.random((ROWS, 32 * -(-VOCAB // 32))) < rng.choice([0.001, 0.5, 0.999], (ROWS, 1))
        allowed[:, rng.integers(0, VOCAB)] = True
        mask = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
        tokens, _ = draws.scored(batch, rows, halves=False, mask=mask)
        same, _ = draws.scored(batch, rows, halves=True, mask=mask)
        np.testing.assert_array_equal(tokens, same)
        held = np.where(rows.words[:, columns.MASKED, None] != 0, allowed[:, :VOCAB], True)
        plain = replace(batch, logits=np.where(held, batch.logits, -np.inf).astype(np.float32))
        np.testing.assert_array_equal(tokens, draws.whole(plain))
