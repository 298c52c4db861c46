"""The prefix tree and the pools under running lanes: random admissions, growth, endings and evictions."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import initialize
from hypothesis.stateful import invariant
from hypothesis.stateful import precondition
from hypothesis.stateful import rule

from jaxfold.runtime.pages import PagePool
from jaxfold.runtime.prefix_tree import pages_behind
from tests.runtime.test_prefix_tree import PAGE
from tests.runtime.test_prefix_tree import WINDOW
from tests.runtime.test_prefix_tree import longest_usable
from tests.runtime.test_prefix_tree import two_groups

tokens_of = st.lists(st.integers(0, 1), min_size=1, max_size=16)


class Lane:
    def __init__(self, tokens: list[int], salt: str, pages: dict[str, list[int | None]]) -> None:
        self.tokens = tokens
        self.salt = salt
        self.pages = pages


class EngineModel(RuleBasedStateMachine):
    """Fake lanes over small pools. Each written page remembers for which tokens it was written."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: list[Lane] = []

    @initialize(full=st.integers(8, 24), window=st.integers(8, 16))
    def start(self, full: int, window: int) -> None:
        self.tree, *pools = two_groups(full, window)
        self.pools: dict[str, PagePool] = dict(zip(("full", "window"), pools, strict=True))
        self.written: dict[str, dict[int, tuple[str, tuple[int, ...]]]] = {"full": {}, "window": {}}

    def make_room(self, pages: int) -> bool:
        return all(pool.can_allocate(pages) or self.tree.evict(name, pages) for name, pool in self.pools.items())

    def write(self, lane: Lane, first: int) -> None:
        """Compute the pages from `first` on, the last one perhaps in part."""
        for name, pool in self.pools.items():
            for i in range(first, len(lane.pages[name])):
                page = lane.pages[name][i]
                assert page is not None
                assert pool.refcount(page) == 1, "a page that somebody else reads was written"
                self.written[name][page] = (lane.salt, tuple(lane.tokens[: (i + 1) * PAGE]))

    def free(self, lane: Lane) -> None:
        self.lanes.remove(lane)
        for name, pool in self.pools.items():
            pool.release(page for page in lane.pages[name] if page is not None)

    def a_lane(self, data: st.DataObject) -> Lane:
        return data.draw(st.sampled_from(self.lanes))

    @rule(tokens=tokens_of, salt=st.sampled_from(["", "other"]))
    def admit(self, tokens: list[int], salt: str) -> None:
        known = {}
        for node in self.tree._order:
            path, top = node.tokens, node.parent
            while top is not None and top.parent is not None:
                path, top = top.tokens + path, top.parent
            if top is self.tree._roots.get(salt):
                known[path] = node.pages["window"] is not None
        match = self.tree.match(tokens, salt)
        assert match.length == longest_usable(known, tokens)
        lane = Lane(list(tokens), salt, match.pages)
        self.lanes.append(lane)
        first = match.length // PAGE
        missing = -(-len(tokens) // PAGE) - first
        if not self.make_room(missing):
            self.free(lane)
            return
        for name, pool in self.pools.items():
            lane.pages[name] += pool.allocate(missing)
        self.write(lane, first)

    @precondition(lambda self: self.lanes)
    @rule(data=st.data(), token=st.integers(0, 1))
    def grow(self, data: st.DataObject, token: int) -> None:
        lane = self.a_lane(data)
        if len(lane.tokens) % PAGE == 0:
            if not self.make_room(1):
                self.free(lane)
                return
            for name, pool in self.pools.items():
                lane.pages[name] += pool.allocate(1)
        lane.tokens.append(token)
        self.write(lane, (len(lane.tokens) - 1) // PAGE)

    @precondition(lambda self: self.lanes)
    @rule(data=st.data())
    def release_behind_the_window(self, data: st.DataObject) -> None:
        lane = self.a_lane(data)
        row = lane.pages["window"]
        for i in range(pages_behind(len(lane.tokens), WINDOW, PAGE)):
            if (page := row[i]) is not None:
                self.pools["window"].release([page])
                row[i] = None

    @precondition(lambda self: self.lanes)
    @rule(data=st.data(), stays=st.booleans())
    def insert(self, data: st.DataObject, stays: bool) -> None:
        lane = self.a_lane(data)
        before = sum(self.tree.cached_pages(name) for name in self.pools)
        taken = self.tree.insert(lane.tokens, lane.pages, lane.salt)
        assert sum(self.tree.cached_pages(name) for name in self.pools) == before + taken
        whole = len(lane.tokens) // PAGE * PAGE
        match = self.tree.match([*lane.tokens[:whole], 7], lane.salt)
        assert match.length == whole, "what was just inserted is not found"
        for name, pool in self.pools.items():
            pool.release(page for page in match.pages[name] if page is not None)
        if not stays:
            self.free(lane)

    @precondition(lambda self: self.lanes)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.free(self.a_lane(data))

    @rule(group=st.sampled_from(["full", "window"]), wanted=st.integers(0, 24))
    def evict(self, group: str, wanted: int) -> None:
        pool = self.pools[group]
        before = pool.free_count
        reached = self.tree.evict(group, wanted)
        assert reached == (pool.free_count >= wanted)
        assert pool.free_count >= before
        if before >= wanted:
            assert pool.free_count == before, "pages were dropped without need"
        if not reached:
            assert all(pool.refcount(page) > 1 for page in self.tree.owners(group)[0]), "a page was left to free"

    @rule()
    def clear(self) -> None:
        self.tree.clear()
        assert len(self.tree) == 0

    @invariant()
    def books_agree(self) -> None:
        self.tree.check_integrity()
        for name, pool in self.pools.items():
            mine = [[page for page in lane.pages[name] if page is not None] for lane in self.lanes]
            pool.check_integrity([*mine, *self.tree.owners(name)])

    @invariant()
    def lanes_read_what_was_computed_for_them(self) -> None:
        for lane in self.lanes:
            for name in self.pools:
                for i, page in enumerate(lane.pages[name]):
                    if page is not None:
                        assert self.written[name][page] == (lane.salt, tuple(lane.tokens[: (i + 1) * PAGE]))

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        for lane in list(self.lanes):
            self.free(lane)
        self.tree.clear()
        assert all(pool.free_count == pool.total for pool in self.pools.values()), "pages leaked"


TestEngineModel = EngineModel.TestCase
TestEngineModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
