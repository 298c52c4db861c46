"""The prefix tree: finished work by token path, so that a prompt's known beginning is not computed again.

A trie whose nodes are whole pages of tokens.  A node holds one page of every cache group, except that
in a sliding-window group the page may be absent (None), because the lane that offered it had already
released it behind its window.  The tree owns one reference of each page it holds.

Two rules keep it useful.  A leaf always has all its pages: a leaf without one could not be the end of
any match, so it is dropped at once.  A page of a full group leaves the tree only with its node, leaves
first; a window page may leave alone, because the nodes behind a window are useful without it.

Not thread-safe: the engine's thread is the only caller.
"""

from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from jaxfold.runtime.pages import IntegrityError
from jaxfold.runtime.pages import PagePool


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One cache group: its pool, and its sliding window in tokens (None: every token stays visible)."""

    pool: PagePool
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """The reusable beginning of a prompt.

    `length` is in tokens, a multiple of the page size.  `pages[group]` has `length / page_size` entries;
    those of a window group behind the window are None. The caller owns one reference of each page.
    """

    length: int
    pages: dict[str, list[int | None]]


@dataclass(eq=False, slots=True)
class _Node:
    tokens: tuple[int, ...]
    parent: "_Node | None"
    pages: dict[str, int | None]
    children: "dict[tuple[int, ...], _Node]" = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return None not in self.pages.values()


def pages_behind(length: int, window: int | None, page_size: int) -> int:
    """How many leading pages of a window group are no longer needed once `length` tokens are in the cache.

    The window is counted back from the last whole page, not from `length`: so the pages that a match
    at that page needs are still there when the lane offers them to the tree.
    """
    if window is None:
        return 0
    return max(0, length // page_size * page_size - window) // page_size


class PrefixTree:
    """Token paths to pages, compared by the token ids themselves. No operation is recursive.

    Costs: match and insert are linear in the path's pages; evict is constant a page dropped, plus one
    look at the pages that running lanes hold.
    """

    def __init__(self, page_size: int, groups: Mapping[str, GroupSpec]) -> None:
        """`page_size` is in tokens and is the same for all groups; each group has a pool of its own."""
        if page_size < 1 or not groups:
            raise ValueError("a prefix tree needs a page size of at least 1 and at least one cache group")
        if any(spec.window is not None and spec.window < 1 for spec in groups.values()):
            raise ValueError("a sliding window has at least 1 token")
        self._page_size = page_size
        self._groups = dict(groups)
        self._roots: dict[str, _Node] = {}
        # All nodes and their salts, least recently used first, each before its ancestors: the first is a leaf.
        self._order: OrderedDict[_Node, str] = OrderedDict()
        # The nodes that hold a page of a window group, by when a match or a lane last needed that page.
        self._window_order: dict[str, OrderedDict[_Node, None]] = {
            name: OrderedDict() for name, spec in groups.items() if spec.window is not None
        }
        self._held = dict.fromkeys(groups, 0)

    def __len__(self) -> int:
        """How many nodes, i.e. whole pages of tokens, are cached."""
        return len(self._order)

    def cached_pages(self, group: str) -> int:
        """How many pages of `group` the tree holds, those that running lanes share included."""
        return self._held[group]

    def owners(self, group: str) -> list[list[int]]:
        """The tree's references in `group`, as `PagePool.check_integrity` takes them."""
        return [[page for node in self._order if (page := node.pages[group]) is not None]]

    def match(self, tokens: Sequence[int], salt: str = "") -> Match:
        """Find the longest cached beginning of `tokens` that a lane can go on from, in whole pages.

        It is shorter than `tokens`, so at least one token is left to compute.  At length L every page of
        a full group must be there, and in a group with window W every page that holds a token of
        [L - W, L); if one is absent, a shorter length is tried.
        """
        path = self._walk(tokens, salt, max(0, len(tokens) - 1) // self._page_size)
        count = len(path)
        while count and not self._is_end(path[:count]):
            count -= 1
        del path[count:]
        length = count * self._page_size
        pages: dict[str, list[int | None]] = {}
        for name, spec in self._groups.items():
            skip = pages_behind(length, spec.window, self._page_size)
            pages[name] = [node.pages[name] if i >= skip else None for i, node in enumerate(path)]
            spec.pool.retain(page for page in pages[name] if page is not None)
        self._touch(path)
        return Match(length, pages)

    def insert(self, tokens: Sequence[int], pages: Mapping[str, Sequence[int | None]], salt: str = "") -> int:
        """Offer the pages of a lane whose cache holds `tokens`; the caller keeps its own references.

        Only whole pages are taken.  A node that exists keeps its page, and an absent window page is
        filled by the offered one.  New nodes after the last one with a page in every group are not made.

        Returns:
            How many pages got a reference of the tree.

        Raises:
            ValueError: a group is missing or has too few pages, a page of a full group is None, or an offered
                page is free; nothing was changed.
        """
        count = len(tokens) // self._page_size
        for name, spec in self._groups.items():
            offered = pages.get(name, ())
            if len(offered) < count:
                raise ValueError(f"{count} pages of cache group {name!r} are needed and {len(offered)} were offered")
            if spec.window is None and None in offered[:count]:
                raise ValueError(f"a page of cache group {name!r} is missing, and the group has no window")
            if any(page is not None and spec.pool.refcount(page) == 0 for page in offered[:count]):
                raise ValueError(f"an offered page of cache group {name!r} is free")
        path = self._walk(tokens, salt, count)
        while count > len(path) and any(pages[name][count - 1] is None for name in self._groups):
            count -= 1
        self._extend(path, tokens, count, salt)
        taken = sum(self._fill(path, name, pages[name]) for name in self._groups)
        self._touch(path)
        return taken

    def evict(self, group: str, need_free: int) -> bool:
        """Drop least recently used pages until the pool of `group` has `need_free` free ones.

        A page that a running lane shares frees nothing, so its node is passed over as recently used; it
        is dropped only where an ancestor's page can be freed in no other way.

        Returns:
            Whether the pool has `need_free` free pages now.
        """
        pool = self._groups[group].pool
        if group in self._window_order:
            self._evict_window(group, need_free)
        else:
            self._evict_leaves(group, need_free)
            if pool.free_count < need_free:
                self._evict_above_shared(group, need_free)
        return pool.free_count >= need_free

    def evictable(self, group: str) -> int:
        """How many pages of `group` only the tree holds, so that `evict` can free them; linear in the nodes."""
        return sum(self._frees(node, group) for node in self._order)

    def clear(self) -> None:
        """Give all references back."""
        while self._order:
            self._drop(next(iter(self._order)))

    def check_integrity(self) -> None:
        """Raise IntegrityError if the links, the orders or the counts contradict each other."""
        seen: set[_Node] = set()
        for node, salt in self._order.items():
            if node.parent is None or node.parent.children.get(node.tokens) is not node:
                raise IntegrityError("a node of the prefix tree is not its parent's child")
            if node.parent in seen or (node.parent not in self._order and node.parent is not self._roots.get(salt)):
                raise IntegrityError("a node of the prefix tree is older than one below it, or cut off from its root")
            if not node.children and not node.complete:
                raise IntegrityError("a leaf of the prefix tree lacks a page")
            seen.add(node)
        links = sum(len(node.children) for node in (*self._order, *self._roots.values()))
        if links != len(self._order) or not all(root.children for root in self._roots.values()):
            raise IntegrityError("the prefix tree has nodes outside its order, or an empty root")
        for name, spec in self._groups.items():
            held = [node for node in self._order if node.pages[name] is not None]
            if len(held) != self._held[name] or (spec.window is None and len(held) != len(self._order)):
                raise IntegrityError(f"the prefix tree miscounts its pages of cache group {name!r}")
            if spec.window is not None and self._window_order[name].keys() != set(held):
                raise IntegrityError(f"the prefix tree lost track of window pages of cache group {name!r}")

    def _keys(self, tokens: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, ...]]:
        size = self._page_size
        return (tuple(tokens[i * size : (i + 1) * size]) for i in range(start, stop))

    def _walk(self, tokens: Sequence[int], salt: str, count: int) -> list[_Node]:
        """The existing nodes of the first `count` pages of `tokens`, the shallowest first."""
        path: list[_Node] = []
        node = self._roots.get(salt)
        if node is None:
            return path
        for key in self._keys(tokens, 0, count):
            node = node.children.get(key)
            if node is None:
                break
            path.append(node)
        return path

    def _is_end(self, path: Sequence[_Node]) -> bool:
        """Whether the last node of `path` has all the pages that a lane needs to go on after it."""
        length = len(path) * self._page_size
        for name in self._window_order:
            needed = range(pages_behind(length, self._groups[name].window, self._page_size), len(path))
            if any(path[i].pages[name] is None for i in reversed(needed)):
                return False
        return True

    def _extend(self, path: list[_Node], tokens: Sequence[int], count: int, salt: str) -> None:
        """Append new nodes, without pages yet, until `path` has `count` nodes."""
        if count <= len(path):
            return
        parent = path[-1] if path else self._roots.setdefault(salt, _Node((), None, {}))
        for key in self._keys(tokens, len(path), count):
            node = _Node(key, parent, dict.fromkeys(self._groups))
            parent.children[key] = node
            self._order[node] = salt
            path.append(node)
            parent = node

    def _fill(self, path: Sequence[_Node], group: str, offered: Sequence[int | None]) -> int:
        """Take the offered pages that `path` lacks in `group`; returns how many."""
        pool = self._groups[group].pool
        taken = 0
        for i, node in enumerate(path):
            page = offered[i]
            if page is None or node.pages[group] is not None:
                continue
            pool.retain((page,))
            node.pages[group] = page
            if group in self._window_order:
                self._window_order[group][node] = None
            taken += 1
        self._held[group] += taken
        return taken

    def _touch(self, path: Sequence[_Node]) -> None:
        """Make `path` most recently used; in window groups only the pages that going on after it needs."""
        for node in reversed(path):
            self._order.move_to_end(node)
        length = len(path) * self._page_size
        for name, order in self._window_order.items():
            for node in reversed(path[pages_behind(length, self._groups[name].window, self._page_size) :]):
                if node in order:
                    order.move_to_end(node)

    def _evict_leaves(self, group: str, need_free: int) -> None:
        """Drop leaves whose page of `group` only the tree holds; the others count as used just now."""
        pool = self._groups[group].pool
        passed: set[_Node] = set()
        while self._order and pool.free_count < need_free:
            leaf = next(iter(self._order))
            if self._frees(leaf, group):
                self._drop(leaf)
            elif leaf in passed:
                return
            else:
                passed.add(leaf)
                self._refresh(leaf)

    def _refresh(self, leaf: _Node) -> None:
        node: _Node | None = leaf
        while node is not None and node in self._order:
            self._order.move_to_end(node)
            node = node.parent

    def _evict_above_shared(self, group: str, need_free: int) -> None:
        """Drop nodes whose page only the tree holds, with everything below them."""
        pool = self._groups[group].pool
        for top in [node for node in self._order if self._frees(node, group)]:
            if pool.free_count >= need_free:
                return
            while top in self._order:
                leaf = top
                while leaf.children:
                    leaf = next(iter(leaf.children.values()))
                self._drop(leaf)

    def _evict_window(self, group: str, need_free: int) -> None:
        """Take window pages that only the tree holds out of their nodes, the longest unneeded first."""
        pool = self._groups[group].pool
        order = self._window_order[group]
        for _ in range(len(order)):
            if not order or pool.free_count >= need_free:
                return
            node = next(iter(order))
            if not self._frees(node, group):
                order.move_to_end(node)
            elif node.children:
                self._release_page(node, group)
            else:
                self._drop(node)

    def _frees(self, node: _Node, group: str) -> bool:
        page = node.pages[group]
        return page is not None and self._groups[group].pool.refcount(page) == 1

    def _release_page(self, node: _Node, group: str) -> None:
        page = node.pages[group]
        if page is None:
            return
        node.pages[group] = None
        self._held[group] -= 1
        if group in self._window_order:
            del self._window_order[group][node]
        self._groups[group].pool.release((page,))

    def _drop(self, leaf: _Node) -> None:
        """Remove a leaf, and then each ancestor that is left as a leaf without all its pages."""
        node = leaf
        while True:
            for name in self._groups:
                self._release_page(node, name)
            salt = self._order.pop(node)
            parent = node.parent
            assert parent is not None, "only roots have no parent, and roots are not in the order"
            del parent.children[node.tokens]
            node.parent = None
            if parent.children:
                return
            if parent.parent is None:
                del self._roots[salt]
                return
            if parent.complete:
                return
            node = parent
