"""The cache's size: what is promised fits, what is refused does not, and the number in the refusal is the true one."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfold.checkpoints import open_checkpoint
from jaxfold.models.config import DecoderConfig
from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.memory import CachePlan
from jaxfold.runtime.memory import free_bytes
from jaxfold.runtime.memory import group_pages
from jaxfold.runtime.memory import plan_cache
from jaxfold.runtime.memory import readable
from jaxfold.runtime.weights import read_config
from pallas_kernels.paged_attention.xla import BLOCK
from tests.tiny_engines import TINY

LONGEST = 2048
FAMILIES = ("llama", "gemma3")
PAGES = st.sampled_from((16, 32, 64, 128, 256))


def config(name: str) -> DecoderConfig:
    return replace(read_config(open_checkpoint(TINY / name))[0], max_position=LONGEST)


CONFIGS = tuple(config(name) for name in FAMILIES)


def plan(cfg: DecoderConfig, budget: int, context: int | None, lanes: int = 4, page: int = 64) -> CachePlan:
    return plan_cache(cfg, context=context, lanes=lanes, page_size=page, block=BLOCK, itemsize=2, budget=budget)


def size_of(cfg: DecoderConfig, pages: dict[str, int], page: int) -> int:
    """Bytes of the arrays that `new_cache` makes of such a plan."""
    row = 2 * cfg.num_kv_heads * cfg.head_dim * 2
    return sum(pages[group] * page * row for group in cfg.layer_groups)


@given(
    cfg=st.sampled_from(CONFIGS),
    budget=st.integers(-(1 << 20), 1 << 24),
    context=st.none() | st.integers(1, LONGEST),
    lanes=st.integers(1, 16),
    page=PAGES,
)
def test_a_plan_fits_and_a_refusal_is_true(
    cfg: DecoderConfig, budget: int, context: int | None, lanes: int, page: int
) -> None:
    try:
        found = plan(cfg, budget, context, lanes, page)
    except CapacityError as error:
        least = size_of(cfg, whole(cfg, min(BLOCK, LONGEST) if context is None else context, page), page)
        assert least > budget
        largest = int(re.findall(r"the largest that fits is (\d+) tokens", str(error))[0])
        assert largest < (context or LONGEST)
        if largest:
            again = plan(cfg, budget, largest, lanes, page)
            assert again.context == largest and again.cache_bytes <= budget
        with pytest.raises(CapacityError):
            plan(cfg, budget, largest + 1, lanes, page)
        return
    assert found.cache_bytes == size_of(cfg, dict(found.pages), page) <= budget
    assert found.context == context if context is not None else BLOCK <= found.context <= LONGEST
    # One whole conversation always fits; more lanes than that share what there is.
    single = whole(cfg, found.context, page)
    times = [(count - 1) / (single[group] - 1) for group, count in found.pages.items()]
    assert len(set(times)) == 1 and 1 <= times[0] <= lanes
    if times[0] < lanes:
        assert size_of(cfg, {g: (n - 1) * (int(times[0]) + 1) + 1 for g, n in single.items()}, page) > budget


def whole(cfg: DecoderConfig, tokens: int, page: int) -> dict[str, int]:
    """Pages of one conversation and the scratch page, by group."""
    return {group: 1 + group_pages(tokens, page, window) for group, window in cfg.groups.items()}


def test_a_context_that_was_not_asked_for_is_what_fits() -> None:
    (cfg, _) = CONFIGS
    roomy = plan(cfg, 1 << 30, None)
    assert roomy.context == LONGEST and roomy.pages["full"] == 1 + 4 * LONGEST // 64
    half = plan(cfg, size_of(cfg, whole(cfg, LONGEST // 2, 64), 64), None)
    assert half.context == LONGEST // 2 and half.pages["full"] == 1 + LONGEST // 2 // 64


def test_a_context_above_the_models_length_is_refused() -> None:
    for cfg in CONFIGS:
        assert plan(cfg, 1 << 30, LONGEST).context == LONGEST
        with pytest.raises(CapacityError, match=rf"--context {LONGEST + 1} is more than the {LONGEST} tokens"):
            plan(cfg, 1 << 30, LONGEST + 1)


def test_no_memory_at_all_is_a_sentence_with_the_numbers() -> None:
    with pytest.raises(CapacityError, match=r"needs 48 KiB of cache, but 5 bytes are missing .* is 0 tokens"):
        plan(CONFIGS[0], -5, 16)


def test_a_window_group_holds_its_window_and_not_the_whole_context() -> None:
    gemma = replace(CONFIGS[1], window=100, max_position=1 << 17)
    found = plan(gemma, 1 << 34, None, lanes=1)
    assert found.pages["full"] == 1 + (1 << 17) // 64
    window = found.pages["window"] - 1
    # Enough for the window and a chunk that is being written; and no more with a longer context.
    assert (100 + 256) / 64 < window < 40
    assert plan(gemma, 1 << 34, 1 << 16, lanes=1).pages["window"] == found.pages["window"]
    assert group_pages(65, 64, 100) == 2, "a short conversation takes what it is long"


@given(tokens=st.integers(1, 1 << 16), page=PAGES, window=st.none() | st.integers(1, 5000))
def test_pages_grow_with_the_conversation(tokens: int, page: int, window: int | None) -> None:
    here = group_pages(tokens, page, window)
    assert 1 <= here <= group_pages(tokens + 1, page, window) <= -(-(tokens + 1) // page)
    if window is not None:
        assert here * page >= min(tokens, window)


def test_free_memory_is_below_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    assert 0 < free_bytes() <= psutil.virtual_memory().total
    numbers = {"memory.max": 5_000_000, "memory.current": 2_000_000}
    monkeypatch.setattr("jaxfold.runtime.memory._cgroup", numbers.get)
    assert free_bytes() == 3_000_000
    monkeypatch.setattr("jaxfold.runtime.memory._cgroup", lambda _: None)
    assert free_bytes() > 3_000_000


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (1536, "1.5 KiB"), (700 << 20, "700 MiB")],
)
def test_sizes_are_readable_however_small(size: int, text: str) -> None:
    assert readable(size) == text


def test_a_budget_below_nothing_says_what_is_missing() -> None:
    with pytest.raises(CapacityError, match=r"but 2 MiB are missing for the weights .* largest that fits is 0 tokens"):
        plan(CONFIGS[0], -(2 << 20), 512)
