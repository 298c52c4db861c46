"""The page pool: all or nothing, exact counts, and books that notice when they are wrong."""

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from jaxfold.runtime.pages import SCRATCH_PAGE
from jaxfold.runtime.pages import IntegrityError
from jaxfold.runtime.pages import OutOfPages
from jaxfold.runtime.pages import PagePool


def test_hands_out_every_page_but_the_scratch_page_lowest_first() -> None:
    pool = PagePool(6)
    assert (pool.total, pool.free_count, pool.used_count) == (5, 5, 0)
    assert pool.allocate(2) == [1, 2]
    assert pool.allocate(3) == [3, 4, 5]
    assert not pool.can_allocate(1)
    assert pool.can_allocate(0)
    assert pool.refcount(SCRATCH_PAGE) == 0


def test_the_page_freed_last_comes_back_first() -> None:
    pool = PagePool(6)
    pool.allocate(4)
    pool.release([3, 2])
    assert pool.allocate(3) == [2, 3, 5]


def test_allocation_is_all_or_nothing() -> None:
    pool = PagePool(4)
    pool.allocate(1)
    with pytest.raises(OutOfPages, match="3 pages were asked for and 2 of 3 are free"):
        pool.allocate(3)
    assert pool.free_count == 2
    pool.check_integrity([[1]])
    with pytest.raises(ValueError, match="cannot allocate -1 pages"):
        pool.allocate(-1)


def test_a_page_is_free_when_its_last_reference_goes() -> None:
    pool = PagePool(4)
    (page,) = pool.allocate(1)
    pool.retain([page, page])
    pool.release([page])
    assert pool.refcount(page) == 2
    pool.release([page, page])
    assert pool.refcount(page) == 0
    assert pool.free_count == 3


@pytest.mark.parametrize("pages", [[1, 1], [1, 2], [1, SCRATCH_PAGE], [1, 99], [1, -1]])
def test_a_release_of_too_much_changes_nothing(pages: list[int]) -> None:
    pool = PagePool(4)
    pool.allocate(1)
    with pytest.raises(ValueError, match="page"):
        pool.release(pages)
    pool.check_integrity([[1]])


@pytest.mark.parametrize("pages", [[1, 2], [1, SCRATCH_PAGE], [1, 99]])
def test_only_used_pages_can_be_retained(pages: list[int]) -> None:
    pool = PagePool(4)
    pool.allocate(1)
    with pytest.raises(ValueError, match="page"):
        pool.retain(pages)
    pool.check_integrity([[1]])


@pytest.mark.parametrize(
    ("owners", "sentence"),
    [
        ([[1, 2]], "page 1 has 2 references but 1 owners"),
        ([[1, 2], [1], [2]], "page 2 has 1 references but 2 owners"),
        ([[1, 2], [1, 3]], "page 3 has 0 references but 1 owners"),
        ([[1, 2], [1, 0]], "page 0 has an owner"),
        ([[1, 2], [1, 7]], "page 7 has an owner"),
    ],
)
def test_integrity_names_the_wrong_page(owners: list[list[int]], sentence: str) -> None:
    pool = PagePool(5)
    pool.retain(pool.allocate(2)[:1])
    pool.check_integrity([[1, 2], [1]])
    with pytest.raises(IntegrityError, match=sentence):
        pool.check_integrity(owners)


def test_integrity_sees_a_lost_free_page() -> None:
    pool = PagePool(5)
    pool._free.pop()
    with pytest.raises(IntegrityError, match="3 pages are listed as free but 4 have no references"):
        pool.check_integrity([])


def test_a_pool_needs_a_page_beside_the_scratch_page() -> None:
    with pytest.raises(ValueError, match="at least 2 pages"):
        PagePool(1)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["allocate", "retain", "release"]), st.integers(0, 9)), max_size=60))
def test_counts_follow_a_plain_model(steps: list[tuple[str, int]]) -> None:
    pool = PagePool(8)
    held: list[int] = []
    for verb, n in steps:
        if verb == "allocate" and pool.can_allocate(n):
            held += pool.allocate(n)
        elif verb == "retain" and held:
            pool.retain([held[n % len(held)]])
            held.append(held[n % len(held)])
        elif verb == "release" and held:
            pool.release([held.pop(n % len(held))])
        pool.check_integrity([held])
        assert pool.used_count == len(set(held))
        assert pool.used_count + pool.free_count == pool.total
    pool.release(held)
    assert pool.free_count == pool.total
