"""The page pool: which pages of a cache group are free, and how many owners each used page has.

A page is a fixed number of consecutive token rows in the cache arrays of one group.  The pool knows
only page numbers; what is written in a page is the owners' business.  Not thread-safe: the engine's
thread is the only caller.
"""

from collections import Counter
from collections.abc import Iterable

SCRATCH_PAGE = 0
"""Padding rows write here. It belongs to nobody and is never handed out."""


class OutOfPages(Exception):
    """Fewer pages are free than were asked for; nothing was allocated."""


class IntegrityError(Exception):
    """The books of a manager contradict each other: a bug of the engine, never of a request."""


class PagePool:
    """Pages 1 to `total_pages - 1` with reference counts; page 0 is the scratch page.

    The page freed last is handed out first, and a fresh pool hands out 1, 2, 3, ..., so page numbers
    are the same in every run that makes the same calls. All operations cost O(1) a page.
    """

    def __init__(self, total_pages: int) -> None:
        """`total_pages` is the length of the cache arrays' page axis, the scratch page included."""
        if total_pages < 2:
            raise ValueError(f"a page pool needs at least 2 pages (one is the scratch page), not {total_pages}")
        self._refs = [0] * total_pages
        self._free = list(range(total_pages - 1, SCRATCH_PAGE, -1))

    @property
    def total(self) -> int:
        """How many pages can be handed out: `free_count + used_count`, the scratch page not counted."""
        return len(self._refs) - 1

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def used_count(self) -> int:
        return self.total - len(self._free)

    def refcount(self, page: int) -> int:
        """How many references `page` has; 0 for a free page and for the scratch page."""
        if not 0 <= page < len(self._refs):
            raise ValueError(f"page {page} is outside the pool's pages 0 to {len(self._refs) - 1}")
        return self._refs[page]

    def can_allocate(self, n: int) -> bool:
        return n <= len(self._free)

    def allocate(self, n: int) -> list[int]:
        """Hand out `n` pages with one reference each.

        Raises:
            OutOfPages: fewer than `n` pages are free; nothing was allocated.
        """
        if n < 0:
            raise ValueError(f"cannot allocate {n} pages")
        if n > len(self._free):
            raise OutOfPages(f"{n} pages were asked for and {len(self._free)} of {self.total} are free")
        pages = [self._free.pop() for _ in range(n)]
        for page in pages:
            self._refs[page] = 1
        return pages

    def retain(self, pages: Iterable[int]) -> None:
        """Add one reference for each occurrence of a used page in `pages`.

        Raises:
            ValueError: one of them is free, or the scratch page; nothing was changed.
        """
        wanted = list(pages)
        for page in wanted:
            if self.refcount(page) == 0:
                raise ValueError(f"page {page} is not in use, so it cannot get another reference")
        for page in wanted:
            self._refs[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Take one reference for each occurrence of a page in `pages`; a page without any is free again.

        Raises:
            ValueError: a page would lose more references than it has; nothing was changed.
        """
        given = list(pages)
        for page, times in Counter(given).items():
            if self.refcount(page) < times:
                raise ValueError(f"page {page} was released {times} times and has {self._refs[page]} references")
        for page in given:
            self._refs[page] -= 1
            if self._refs[page] == 0:
                self._free.append(page)

    def check_integrity(self, owners: Iterable[Iterable[int]]) -> None:
        """Compare the reference counts with `owners`: the pages of everyone who holds references.

        Raises:
            IntegrityError: a count differs from the number of times the page occurs among the owners,
                or the list of free pages is not exactly the pages without references.
        """
        held = Counter(page for pages in owners for page in pages)
        outside = [page for page in held if not SCRATCH_PAGE < page < len(self._refs)]
        if outside:
            raise IntegrityError(f"page {outside[0]} has an owner but is no page that the pool hands out")
        for page, refs in enumerate(self._refs):
            if refs != held[page]:
                raise IntegrityError(f"page {page} has {refs} references but {held[page]} owners")
        unused = [page for page in range(1, len(self._refs)) if self._refs[page] == 0]
        if sorted(self._free) != unused:
            raise IntegrityError(f"{len(self._free)} pages are listed as free but {len(unused)} have no references")
