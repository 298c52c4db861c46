"""What a host without an engine does: it makes the device's calls that host 0 tells it, one after the other."""

import jax

from jaxfold.runtime.api import HostLostError
from jaxfold.runtime.device import Device
from jaxfold.runtime.hosts.calls import draw_of
from jaxfold.runtime.hosts.calls import step_of
from jaxfold.runtime.hosts.calls import written_of
from jaxfold.runtime.hosts.frames import Kind
from jaxfold.runtime.hosts.group import Follower


def follow(device: Device, group: Follower) -> None:
    """Make host 0's calls until it ends.

    Raises:
        HostLostError: host 0 is gone, or a call failed here.
    """
    table = device.programs.table
    hidden: tuple[jax.Array, ...] = ()
    while True:
        message = group.take()
        try:
            match message.kind:
                case Kind.STEP:
                    hidden = device.step(*step_of(table, message))
                case Kind.DRAW:
                    call, rows, mask, whole = draw_of(message)
                    device.draw(hidden[call], rows, mask, whole)
                case Kind.RESET:
                    device.reset(message.numbers[0], *message.arrays)
                case Kind.WRITTEN:
                    device.written(written_of(table, message))
                case Kind.REBUILD:
                    device.rebuild()
                case Kind.ENDED:
                    return
                case _:
                    raise ValueError(f"a message of kind {message.kind.name} is no call")
        except Exception as error:
            # The first line: JAX adds the whole trace of a program.
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise HostLostError(f"a call of the device failed on this host: {reason}") from error
