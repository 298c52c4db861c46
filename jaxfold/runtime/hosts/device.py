"""The device of host 0 where several hosts share the model: each call is told to the others, then made."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxfold.models.plan import Plan
from jaxfold.runtime.device import Device
from jaxfold.runtime.hosts.calls import draw_message
from jaxfold.runtime.hosts.calls import reset_message
from jaxfold.runtime.hosts.calls import step_message
from jaxfold.runtime.hosts.calls import written_message
from jaxfold.runtime.hosts.frames import Kind
from jaxfold.runtime.hosts.frames import Message
from jaxfold.runtime.programs import Draw
from jaxfold.runtime.sampling.rows import DrawRows
from jaxfold.runtime.table import StepShape


class SharedDevice(Device):
    """See the module. `tell` sends a message to every other host."""

    alone = False

    def __init__(self, tell: Callable[[Message], None], *args: Any) -> None:
        super().__init__(*args)
        self._tell = tell
        self._hidden: tuple[jax.Array, ...] = ()

    def step(self, shape: StepShape, plan: Plan) -> tuple[jax.Array, ...]:
        self._tell(step_message(self.programs.table, shape, plan))
        self._hidden = super().step(shape, plan)
        return self._hidden

    def draw(
        self, hidden: jax.Array, rows: DrawRows, mask: NDArray[np.int32] | None = None, whole: bool = False
    ) -> Draw:
        call = next(i for i, one in enumerate(self._hidden) if one is hidden)
        self._tell(draw_message(call, rows, mask, whole))
        return super().draw(hidden, rows, mask, whole)

    def reset(self, slot: int, ids: NDArray[np.int32], values: NDArray[np.float32]) -> None:
        self._tell(reset_message(slot, ids, values))
        super().reset(slot, ids, values)

    def written(self, pages: Mapping[str, NDArray[np.int32]]) -> list[NDArray[np.generic]]:
        self._tell(written_message(pages))
        return super().written(pages)

    def rebuild(self) -> None:
        self._tell(Message(Kind.REBUILD))
        super().rebuild()
