"""Pages of lanes: admission takes nothing from the prefix tree for a request that it then turns away."""

from jaxfold.runtime.lanes import LanePages
from jaxfold.runtime.pages import PagePool
from jaxfold.runtime.prefix_tree import GroupSpec

PAGE = 16


def pages_with(full: int, window: int) -> LanePages:
    groups = {"full": GroupSpec(PagePool(full + 1)), "window": GroupSpec(PagePool(window + 1), 64)}
    return LanePages(groups, PAGE, dict.fromkeys(groups, 64), reuse=True)


def cache_prefix(pages: LanePages, count: int) -> None:
    taken = {group: spec.pool.allocate(count) for group, spec in pages.groups.items()}
    pages.tree.insert(range(count * PAGE), dict(taken))
    for group, spec in pages.groups.items():
        spec.pool.release(taken[group])


def test_room_is_made_by_dropping_prefixes() -> None:
    pages = pages_with(full=8, window=20)
    cache_prefix(pages, 6)
    assert pages.can_open(4 * PAGE)
    assert pages.groups["full"].pool.free_count >= 4
    assert len(pages.tree) < 6


def test_a_request_that_cannot_be_admitted_costs_no_prefix() -> None:
    pages = pages_with(full=20, window=8)
    cache_prefix(pages, 6)
    held = pages.groups["window"].pool.allocate(2)
    before = (len(pages.tree), pages.used())
    # There is room in the one group after dropping prefixes, and none in the other whatever is dropped.
    assert not pages.can_open(18 * PAGE)
    assert (len(pages.tree), pages.used()) == before
    pages.groups["window"].pool.release(held)


def test_pages_that_a_lane_shares_do_not_count_as_room() -> None:
    pages = pages_with(full=8, window=20)
    cache_prefix(pages, 6)
    match = pages.tree.match(range(6 * PAGE + 1))
    assert pages.tree.evictable("full") == 0
    assert not pages.can_open(3 * PAGE)
    assert len(pages.tree) == 6
    for group, shared in match.pages.items():
        pages.groups[group].pool.release([page for page in shared if page is not None])
    assert pages.tree.evictable("full") == 6
