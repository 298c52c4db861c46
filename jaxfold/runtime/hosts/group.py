"""Host 0's side of several hosts, and a follower's side, from meeting to ending."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from typing import Final

import jax

from jaxfold.checkpoints import Checkpoint
from jaxfold.runtime.api import HostError
from jaxfold.runtime.api import HostLostError
from jaxfold.runtime.hosts.device import SharedDevice
from jaxfold.runtime.hosts.facts import device_facts
from jaxfold.runtime.hosts.facts import difference
from jaxfold.runtime.hosts.facts import facts_of
from jaxfold.runtime.hosts.frames import Kind
from jaxfold.runtime.hosts.frames import Message
from jaxfold.runtime.hosts.meeting import gather
from jaxfold.runtime.hosts.meeting import join
from jaxfold.runtime.hosts.peer import SILENCE_S
from jaxfold.runtime.hosts.peer import Lost
from jaxfold.runtime.hosts.peer import Peer
from jaxfold.runtime.hosts.peer import Pulse
from jaxfold.runtime.hosts.seat import Seat
from jaxfold.runtime.options import EngineOptions

JAX_JOIN_S: Final = 60
JAX_HEARTBEAT_S: Final = 30
"""After this JAX itself aborts the survivors: late enough for our own ending, which tells clients why."""
JAX_SHUTDOWN_S: Final = 5


class Group:
    """What both sides share. `lost` is called from another thread, once, when a host that took part is gone."""

    def __init__(self, seat: Seat, lost: Lost) -> None:
        self.seat = seat
        self._lost = lost
        self._peers: list[Peer] = []
        self._pulse: Pulse | None = None

    def meet(self, checkpoint: Checkpoint, options: EngineOptions, progress: Callable[[str], None]) -> EngineOptions:
        """Meet the other hosts and start JAX's runtime between them; the options with `tp` over all devices.

        Nothing may have asked JAX for its devices before.

        Raises:
            HostError: somebody is missing, or is not like the others.
        """
        # They are made of nothing but what every host reads for itself, so that differences show.
        self._connect(facts_of(checkpoint, options, self.seat.count), progress)
        self._pulse = Pulse(self._peers)
        progress("starting JAX on all hosts")
        _start_jax(self.seat)
        self._compare(device_facts())
        devices = len(jax.devices())
        if options.tp not in (1, devices):
            raise HostError(f"--tp {options.tp}: the hosts have {devices} devices, and all of them take part")
        if jax.default_backend() != "cpu":
            # Not tested there, and compilers of several hosts may wait for each other.
            progress("several hosts: compiled programs are not kept on this platform")
            options = replace(options, compile_cache_dir=None)
        return replace(options, tp=devices)

    def least(self, value: int) -> int:
        """The least of the numbers that the hosts call this with."""
        raise NotImplementedError

    def close(self, reason: str = "") -> None:
        """End, and tell the others why; without a reason all is well, and JAX's runtime is left in order."""
        if self._pulse is not None:
            self._pulse.stop()
        for peer in self._peers:
            with contextlib.suppress(HostLostError):
                peer.send(Message(Kind.ENDED, text=reason))
        if not reason and self._peers:
            with contextlib.suppress(Exception):
                jax.distributed.shutdown()
        for peer in self._peers:
            peer.close()

    def _connect(self, facts: dict[str, str], progress: Callable[[str], None]) -> None:
        raise NotImplementedError

    def _compare(self, facts: dict[str, str]) -> None:
        """Raises HostError where the facts of another host are not these."""
        raise NotImplementedError


class Leader(Group):
    """Host 0."""

    def least(self, value: int) -> int:
        found = min(value, *(_expected(peer, Kind.VALUE).numbers[0] for peer in self._peers))
        self.tell(Message(Kind.VALUE, (found,)))
        return found

    def device(self, *args: Any) -> SharedDevice:
        """The device whose calls the others make too; `args` are those of `Device`. Waits until they can."""
        for peer in self._peers:
            _expected(peer, Kind.READY)
            peer.silence_s = SILENCE_S
        return SharedDevice(self.tell, *args)

    def tell(self, message: Message) -> None:
        """Send a message to every other host.

        Raises:
            HostLostError: one is gone.
        """
        for peer in self._peers:
            peer.send(message)

    def _connect(self, facts: dict[str, str], progress: Callable[[str], None]) -> None:
        self._peers = [Peer(link, self._lost) for link in gather(self.seat, facts, progress)]

    def _compare(self, facts: dict[str, str]) -> None:
        for peer in self._peers:
            found = difference(json.loads(_expected(peer, Kind.FACTS).text), facts)
            if found is not None:
                raise HostError(f"{peer.name} cannot take part: {found}")


class Follower(Group):
    """Every other host."""

    @property
    def leader(self) -> Peer:
        return self._peers[0]

    def least(self, value: int) -> int:
        self.leader.send(Message(Kind.VALUE, (value,)))
        return _expected(self.leader, Kind.VALUE).numbers[0]

    def ready(self) -> None:
        """Tell host 0 that its calls can come."""
        self.leader.send(Message(Kind.READY))

    def take(self) -> Message:
        """Host 0's next message."""
        message = self.leader.take()
        # Host 0 has loaded its part, too.
        self.leader.silence_s = SILENCE_S
        return message

    def _connect(self, facts: dict[str, str], progress: Callable[[str], None]) -> None:
        self._peers = [Peer(join(self.seat, facts, progress), self._lost)]

    def _compare(self, facts: dict[str, str]) -> None:
        # Where they are not those of host 0, that one ends and says so.
        self.leader.send(Message(Kind.FACTS, text=json.dumps(facts)))


def _expected(peer: Peer, kind: Kind) -> Message:
    message = peer.take()
    if message.kind is not kind:
        raise HostLostError(f"{peer.name} is lost: it ended, or sent {message.kind.name} where {kind.name} was due")
    return message


def _start_jax(seat: Seat) -> None:
    # Its handler would take SIGTERM away from the server.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            seat.jax_address,
            seat.count,
            seat.host_id,
            cluster_detection_method="deactivate",
            initialization_timeout=JAX_JOIN_S,
            heartbeat_timeout_seconds=JAX_HEARTBEAT_S,
            shutdown_timeout_seconds=JAX_SHUTDOWN_S,
            coordinator_bind_address=seat.jax_address,
        )
    except RuntimeError as error:
        raise HostError(f"JAX cannot start on several hosts: {str(error).splitlines()[0]}") from None
