"""The prefix tree: what it matches, what it keeps, and what it gives up first."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from jaxfold.runtime.pages import IntegrityError
from jaxfold.runtime.pages import PagePool
from jaxfold.runtime.prefix_tree import GroupSpec
from jaxfold.runtime.prefix_tree import PrefixTree
from jaxfold.runtime.prefix_tree import pages_behind

PAGE = 2
WINDOW = 5


def full_tree(pages: int = 64, page_size: int = PAGE) -> tuple[PrefixTree, PagePool]:
    pool = PagePool(pages + 1)
    return PrefixTree(page_size, {"full": GroupSpec(pool)}), pool


def two_groups(full: int = 64, window: int = 64) -> tuple[PrefixTree, PagePool, PagePool]:
    pools = PagePool(full + 1), PagePool(window + 1)
    return PrefixTree(PAGE, {"full": GroupSpec(pools[0]), "window": GroupSpec(pools[1], WINDOW)}), *pools


def put(tree: PrefixTree, pool: PagePool, tokens: Sequence[int], salt: str = "") -> list[int]:
    """Insert `tokens` as a lane that finishes does; returns the pages it offered."""
    pages = pool.allocate(len(tokens) // tree._page_size)
    tree.insert(tokens, {"full": pages}, salt)
    pool.release(pages)
    return pages


def put_both(tree: PrefixTree, full: PagePool, window: PagePool, tokens: Sequence[int]) -> None:
    """The same with a window group: only the pages that the window still needs are offered."""
    count = len(tokens) // PAGE
    behind = pages_behind(len(tokens), WINDOW, PAGE)
    pages, kept = full.allocate(count), window.allocate(count - behind)
    tree.insert(tokens, {"full": pages, "window": [*[None] * behind, *kept]})
    full.release(pages)
    window.release(kept)


def length(tree: PrefixTree, tokens: Sequence[int], salt: str = "") -> int:
    """Match and give the pages straight back."""
    match = tree.match(tokens, salt)
    for name, pages in match.pages.items():
        tree._groups[name].pool.release(page for page in pages if page is not None)
    return match.length


def test_an_empty_tree_matches_nothing() -> None:
    tree, pool = full_tree()
    match = tree.match([1, 2, 3])
    assert (match.length, match.pages) == (0, {"full": []})
    assert tree.match([]).length == 0
    assert pool.used_count == 0


def test_a_match_is_whole_pages_and_leaves_a_token_to_compute() -> None:
    tree, pool = full_tree()
    pages = put(tree, pool, [1, 2, 3, 4, 5])
    assert len(tree) == 2
    assert length(tree, [1, 2, 3, 4]) == 2
    match = tree.match([1, 2, 3, 4, 5])
    assert (match.length, match.pages) == (4, {"full": pages[:2]})
    assert [pool.refcount(page) for page in pages] == [2, 2]
    assert length(tree, [1, 2, 3, 9, 5]) == 2
    assert length(tree, [9, 2, 3, 4, 5]) == 0


def test_salts_never_meet() -> None:
    tree, pool = full_tree()
    put(tree, pool, [1, 2, 3, 4], salt="a")
    assert length(tree, [1, 2, 3, 4, 5], salt="b") == 0
    assert length(tree, [1, 2, 3, 4, 5]) == 0
    other = put(tree, pool, [1, 2, 3, 4], salt="b")
    assert tree.match([1, 2, 3, 4, 5], salt="b").pages["full"] == other
    assert length(tree, [1, 2, 3, 4, 5], salt="a") == 4
    put(tree, pool, [1, 2, 3, 4])
    assert length(tree, [1, 2, 3, 4, 5], salt="c") == 0
    tree.check_integrity()


def test_equal_hashes_are_not_equal_tokens() -> None:
    tree, pool = full_tree(page_size=1)
    put(tree, pool, [-1])
    assert hash((-1,)) == hash((-2,))
    assert length(tree, [-2, 5]) == 0
    assert length(tree, [-1, 5]) == 1


def test_an_existing_node_keeps_its_own_page() -> None:
    tree, pool = full_tree()
    first = put(tree, pool, [1, 2, 3, 4])
    mine = pool.allocate(3)
    assert tree.insert([1, 2, 3, 4, 5, 6, 7], {"full": mine}) == 1
    pool.release(mine)
    assert tree.match([1, 2, 3, 4, 5, 6, 7]).pages["full"] == [*first, mine[2]]
    assert tree.insert([1, 2, 3, 4], {"full": first}) == 0


def test_a_bad_offer_changes_nothing() -> None:
    tree, full, window = two_groups()
    pages, kept = full.allocate(2), window.allocate(2)
    with pytest.raises(ValueError, match="2 pages of cache group 'window' are needed and 1 were offered"):
        tree.insert([1, 2, 3, 4], {"full": pages, "window": kept[:1]})
    with pytest.raises(ValueError, match="'window' are needed and 0 were offered"):
        tree.insert([1, 2, 3, 4], {"full": pages})
    with pytest.raises(ValueError, match="'full' is missing"):
        tree.insert([1, 2, 3, 4], {"full": [pages[0], None], "window": kept})
    with pytest.raises(ValueError, match="'window' is free"):
        tree.insert([1, 2, 3, 4], {"full": pages, "window": [kept[0], 9]})
    tree.check_integrity()
    assert len(tree) == 0
    assert tree.insert([1], {"full": [], "window": []}) == 0


def test_the_least_recently_used_leaf_goes_first() -> None:
    tree, pool = full_tree(pages=6)
    put(tree, pool, [1, 1, 2, 2])
    put(tree, pool, [1, 1, 3, 3])
    put(tree, pool, [4, 4, 5, 5])
    assert length(tree, [1, 1, 2, 2, 0]) == 4
    assert tree.evict("full", 2)
    assert length(tree, [1, 1, 3, 3, 0]) == 2
    assert length(tree, [4, 4, 5, 5, 0]) == 4
    assert length(tree, [1, 1, 2, 2, 0]) == 4
    assert tree.evict("full", 4)
    assert length(tree, [4, 4, 5, 5, 0]) == 0
    assert length(tree, [1, 1, 2, 2, 0]) == 4
    tree.check_integrity()


def test_evict_says_whether_it_got_there() -> None:
    tree, pool = full_tree(pages=4)
    held = pool.allocate(1)
    put(tree, pool, [1, 2, 3, 4])
    assert tree.evict("full", 1)
    assert len(tree) == 2
    assert tree.evict("full", 3)
    assert not tree.evict("full", 4)
    assert len(tree) == 0
    pool.check_integrity([held])


def test_pages_of_running_lanes_are_passed_over() -> None:
    tree, pool = full_tree(pages=4)
    put(tree, pool, [1, 1, 2, 2])
    running = tree.match([1, 1, 2, 2, 0])
    put(tree, pool, [3, 3, 4, 4])
    assert tree.evict("full", 2)
    assert not tree.evict("full", 3)
    assert running.pages["full"] == tree.match([1, 1, 2, 2, 0]).pages["full"]
    assert len(tree) == 2


def test_eviction_reaches_an_unused_ancestor_below_a_shared_leaf() -> None:
    tree, pool = full_tree(pages=8)
    put(tree, pool, [1, 1, 2, 2])
    lane = pool.allocate(3)
    tree.insert([1, 1, 2, 2, 3, 3], {"full": lane})
    assert pool.free_count == 3
    assert tree.evict("full", 4)
    assert len(tree) == 1
    assert tree.evict("full", 5)
    assert not tree.evict("full", 6)
    pool.check_integrity([lane])


def test_a_shared_leaf_stays_when_dropping_it_would_free_nothing() -> None:
    tree, pool = full_tree(pages=4)
    lane = pool.allocate(3)
    tree.insert([1, 1, 2, 2, 3, 3], {"full": lane})
    assert not tree.evict("full", 2)
    assert len(tree) == 3
    pool.check_integrity([lane, *tree.owners("full")])


def test_pages_behind_keeps_what_a_match_at_the_last_whole_page_needs() -> None:
    for tokens in range(1, 60):
        for window in range(1, 12):
            end = tokens // 4 * 4
            behind = pages_behind(tokens, window, 4)
            needed = {t // 4 for t in range(max(0, end - window), end)}
            assert needed == set(range(behind, tokens // 4))
    assert pages_behind(1000, None, 4) == 0


def test_a_window_match_needs_only_the_pages_in_the_window() -> None:
    tree, full, window = two_groups()
    put_both(tree, full, window, range(12))
    assert (tree.cached_pages("full"), tree.cached_pages("window")) == (6, 3)
    match = tree.match(range(13))
    assert match.length == 12
    assert [page is None for page in match.pages["window"]] == [True, True, True, False, False, False]
    assert None not in match.pages["full"]
    # Two pages earlier the window would reach pages that were never offered.
    assert length(tree, range(11)) == 0


def test_a_match_falls_back_to_the_longest_usable_length() -> None:
    tree, full, window = two_groups()
    put_both(tree, full, window, range(6))
    put_both(tree, full, window, range(16))
    assert length(tree, range(17)) == 16
    # The window of 14 reaches back into [9, 14): page 4 is absent, and so on down to the first insert.
    assert length(tree, range(15)) == 6


def test_an_absent_window_page_is_filled_by_a_later_offer() -> None:
    tree, full, window = two_groups()
    put_both(tree, full, window, range(16))
    pages, kept = full.allocate(5), window.allocate(5)
    assert tree.insert(range(10), {"full": pages, "window": kept}) == 5
    full.release(pages)
    window.release(kept)
    assert length(tree, range(11)) == 10
    assert length(tree, range(17)) == 16
    tree.check_integrity()


def test_a_tail_without_window_pages_is_not_inserted() -> None:
    tree, full, window = two_groups()
    pages, kept = full.allocate(4), window.allocate(2)
    assert tree.insert(range(8), {"full": pages, "window": [*kept, None, None]}) == 4
    assert len(tree) == 2
    assert tree.insert([9, 9], {"full": pages, "window": [None]}) == 0
    tree.check_integrity()


def test_window_eviction_takes_old_turns_before_the_end_of_a_live_conversation() -> None:
    tree, full, window = two_groups()
    put_both(tree, full, window, range(8))
    put_both(tree, full, window, range(16))
    assert window.used_count == 6
    assert tree.evict("window", window.free_count + 3)
    assert length(tree, range(17)) == 16
    assert length(tree, range(9)) == 0
    assert tree.cached_pages("full") == 8
    tree.check_integrity()


def test_a_match_makes_its_window_pages_recently_used() -> None:
    tree, full, window = two_groups()
    put_both(tree, full, window, range(12))
    put_both(tree, full, window, range(50, 62))
    assert length(tree, range(13)) == 12
    assert tree.evict("window", window.free_count + 3)
    assert length(tree, range(13)) == 12
    assert length(tree, range(50, 63)) == 0


def test_a_leaf_that_loses_its_window_page_takes_its_useless_ancestors_along() -> None:
    tree, full, window = two_groups()
    put_both(tree, full, window, range(16))
    assert tree.evict("window", window.total)
    assert len(tree) == 0
    assert full.free_count == full.total
    put_both(tree, full, window, range(4))
    put_both(tree, full, window, range(20))
    assert tree.evict("window", window.free_count + 5)
    assert tree.cached_pages("window") == 0


def test_window_pages_of_running_lanes_stay() -> None:
    tree, full, window = two_groups(window=6)
    put_both(tree, full, window, range(12))
    running = tree.match(range(13))
    put_both(tree, full, window, range(50, 62))
    assert not tree.evict("window", 4)
    assert window.free_count == 3
    assert length(tree, range(13)) == 12
    assert running.length == 12


def test_a_long_path_needs_no_recursion() -> None:
    depth = 20_000
    tree, pool = full_tree(pages=depth, page_size=1)
    put(tree, pool, range(depth))
    assert length(tree, range(depth + 1)) == depth
    tree.check_integrity()
    assert tree.evict("full", depth // 2)
    assert length(tree, range(depth + 1)) == depth // 2
    tree.clear()
    assert pool.free_count == pool.total


def test_nothing_of_a_salt_is_left_when_its_pages_are_gone() -> None:
    tree, pool = full_tree(pages=4)
    for i in range(50):
        assert tree.evict("full", 2)
        put(tree, pool, [1, 2, 3, 4], salt=str(i))
        tree.check_integrity()
    assert len(tree._roots) <= 2
    tree.clear()
    assert not tree._roots


@pytest.mark.parametrize(
    ("page_size", "groups", "sentence"),
    [(0, {"full": None}, "page size"), (4, {}, "at least one cache group"), (4, {"w": 0}, "at least 1 token")],
)
def test_a_tree_that_cannot_work_is_refused(page_size: int, groups: dict[str, int | None], sentence: str) -> None:
    specs = {name: GroupSpec(PagePool(4), window) for name, window in groups.items()}
    with pytest.raises(ValueError, match=sentence):
        PrefixTree(page_size, specs)


def test_integrity_sees_wrong_books() -> None:
    tree, pool = full_tree()
    put(tree, pool, [1, 2, 3, 4])
    tree._order.move_to_end(next(iter(tree._order)))
    with pytest.raises(IntegrityError, match="older than one below it"):
        tree.check_integrity()
    tree.match([1, 2, 3, 4, 5])
    tree.check_integrity()
    tree._held["full"] += 1
    with pytest.raises(IntegrityError, match="miscounts"):
        tree.check_integrity()


def longest_usable(known: dict[tuple[int, ...], bool], tokens: Sequence[int]) -> int:
    """The definition, spelt out: `known` maps each cached path to whether its window page is there."""
    usable = [0]
    for end in range(PAGE, len(tokens), PAGE):
        ends = [(t // PAGE + 1) * PAGE for t in range(end)]
        in_window = ends[max(0, end - WINDOW) :]
        if all(tuple(tokens[:e]) in known for e in ends) and all(known[tuple(tokens[:e])] for e in in_window):
            usable.append(end)
    return usable[-1]


tokens_of = st.lists(st.integers(0, 1), min_size=1, max_size=16)


@settings(deadline=None)
@given(st.lists(st.tuples(tokens_of, st.integers(0, 8)), max_size=8), st.lists(tokens_of, min_size=1, max_size=8))
def test_matches_are_the_longest_by_definition(inserts: list[tuple[list[int], int]], asked: list[list[int]]) -> None:
    tree, full, window = two_groups(256, 256)
    known: dict[tuple[int, ...], bool] = {}
    for tokens, missing in inserts:
        count = len(tokens) // PAGE
        behind = min(missing, count)
        pages, kept = full.allocate(count), window.allocate(count - behind)
        tree.insert(tokens, {"full": pages, "window": [*[None] * behind, *kept]})
        # Without any window page nothing new is made.
        for i in range(count if kept else 0):
            path = tuple(tokens[: (i + 1) * PAGE])
            known[path] = known.get(path, False) or i >= behind
    tree.check_integrity()
    for tokens in [*asked, *(tokens for tokens, _ in inserts)]:
        assert length(tree, tokens) == longest_usable(known, tokens)
