"""A follower in this process: after any mix of requests it holds the arrays of the device that it follows."""

import queue
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxfold.models.plan import Part
from jaxfold.models.plan import Plan
from jaxfold.models.plan import empty_part
from jaxfold.runtime import self_check
from jaxfold.runtime.api import HostLostError
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.device import Device
from jaxfold.runtime.hosts.calls import step_message
from jaxfold.runtime.hosts.calls import step_of
from jaxfold.runtime.hosts.device import SharedDevice
from jaxfold.runtime.hosts.follower import follow
from jaxfold.runtime.hosts.frames import Kind
from jaxfold.runtime.hosts.frames import Message
from jaxfold.runtime.hosts.frames import decode
from jaxfold.runtime.hosts.frames import encode
from jaxfold.runtime.table import make_table
from tests.tiny_engines import CONTEXT
from tests.tiny_engines import PAGE
from tests.tiny_engines import Ask
from tests.tiny_engines import Client
from tests.tiny_engines import FreeWindows
from tests.tiny_engines import tiny_engine

MIX = (
    Ask((5, 6, 7, 8, 9) * 12, 40, SamplingParams(temperature=0.2, seed=7, repeat_penalty=1.2)),
    Ask(tuple(range(3, 200)), 20, SamplingParams(temperature=0.9, seed=3, logit_bias=((5, 2.0), (9, -3.0)))),
    Ask((9, 8, 7), 30, logprobs=2),
    Ask(tuple(range(40, 60)), 1, labels=(1, 2, 3)),
    Ask(tuple(range(50, 90)), 3, score_prompt=True),
)


@pytest.mark.parametrize("drafts", [True, False], ids=["drafted", "plain"])
def test_a_follower_holds_the_same_arrays(programs_dir: Path, drafts: bool) -> None:
    engine = tiny_engine("gemma3", programs_dir, draft=drafts)
    core, first = engine.core, engine.core.device
    if core.planner is not None:
        core.planner.costs = FreeWindows()
    sent: queue.Queue[bytes] = queue.Queue()
    args = (first.programs, first.weights, first.pages, PAGE, first.cache.keys[0].dtype, CONTEXT)
    core.device = SharedDevice(lambda message: sent.put(encode(message)), *args)
    follower = Device(*args)
    group: Any = SimpleNamespace(take=lambda: decode(sent.get()))
    thread = threading.Thread(target=follow, args=(follower, group))
    thread.start()
    client = Client(engine)
    client.together(MIX)
    core.device.rebuild()
    client.together(MIX[:3])
    engine.close()
    sent.put(encode(Message(Kind.ENDED)))
    thread.join()
    for mine, theirs in zip(jax.tree.leaves(core.device.cache), jax.tree.leaves(follower.cache), strict=True):
        assert np.array_equal(np.asarray(mine).view(np.uint8), np.asarray(theirs).view(np.uint8))
    for mine, theirs in zip(core.device.state, follower.state, strict=True):
        assert np.array_equal(mine, theirs)
    assert any(np.asarray(leaf).any() for leaf in core.device.state)


def test_the_self_check_of_a_shared_device_is_followed(programs_dir: Path) -> None:
    engine = tiny_engine("llama", programs_dir)
    engine.close()
    first = engine.core.device
    kinds: list[Kind] = []
    args = (first.programs, first.weights, first.pages, PAGE, first.cache.keys[0].dtype, CONTEXT)
    device = SharedDevice(lambda message: kinds.append(message.kind), *args)
    assert self_check.run(device, None).level == "A"
    assert set(kinds) == {Kind.STEP, Kind.DRAW, Kind.WRITTEN, Kind.REBUILD}


def test_a_plan_comes_back() -> None:
    table = make_table(3, {"full": 8, "window": 4}, 7)
    random = np.random.default_rng(1)
    for shape in table.steps:
        parts = []
        for one in shape.parts:
            part = empty_part(one, table.widths)
            for array in (part["tokens"], part["slot"], part["start"], *part["tables"].values()):
                array[:] = random.integers(0, 100, array.shape)
            parts.append(Part(**part))
        plan = Plan(tuple(parts), random.integers(0, 9, sum(table.calls(shape)), np.int32))  # type: ignore[arg-type]
        found, again = step_of(table, decode(encode(step_message(table, shape, plan))))
        assert found == shape
        assert jax.tree.structure(again) == jax.tree.structure(plan)
        assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(plan), strict=True))


def test_a_call_that_fails_ends_the_follower_with_one_sentence(programs_dir: Path) -> None:
    class Broken:
        programs = SimpleNamespace(table=None)

        def rebuild(self) -> None:
            raise ValueError("no room\nand a long trace")

    device: Any = Broken()
    for message in (Message(Kind.REBUILD), Message(Kind.READY)):
        group: Any = SimpleNamespace(take=lambda message=message: message)
        with pytest.raises(HostLostError, match=r"on this host: (no room|a message of kind READY is no call)$"):
            follow(device, group)
