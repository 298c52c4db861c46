"""Another host that is watched: it sends something at least every `BEAT_S`, or it is lost."""

import queue
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Final

from jaxfold.runtime.api import HostLostError
from jaxfold.runtime.hosts.frames import Kind
from jaxfold.runtime.hosts.frames import Message
from jaxfold.runtime.hosts.link import Link
from jaxfold.runtime.hosts.link import LinkError

BEAT_S: Final = 0.5
"""Seconds between two heartbeats. A closed connection is seen at once, without them."""
SILENCE_S: Final = 5.0
"""Seconds of silence after which a serving host is lost: more than Python may need to come round on a busy machine."""
LOADING_SILENCE_S: Final = 20.0
"""The same while a host loads, where calls that hold Python's lock may take long."""

Lost = Callable[[str], None]


class Peer:
    """A link with a thread that receives: heartbeats are counted, other messages wait in order for `take`.

    `lost` is called once, from that thread or the one that watches, with one sentence.
    """

    def __init__(self, link: Link, lost: Lost) -> None:
        self.name = f"host {link.host_id}"
        self.silence_s = LOADING_SILENCE_S
        self._link = link
        self._lost = lost
        self._inbox: queue.Queue[Message | str] = queue.Queue()
        self._heard = time.monotonic()
        self._over = threading.Lock()
        self._ending = False
        threading.Thread(target=self._receive, name=f"jaxfold-{self.name}", daemon=True).start()

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            HostLostError: the host is gone.
        """
        try:
            self._link.send(message)
        except LinkError as error:
            raise HostLostError(self._sentence(str(error))) from None

    def take(self) -> Message:
        """The next message that is no heartbeat.

        Raises:
            HostLostError: the host is gone, or says that it ends.
        """
        found = self._inbox.get()
        if isinstance(found, str):
            self._inbox.put(found)
            raise HostLostError(found)
        return found

    def beat(self) -> None:
        """Send a heartbeat unless something else is being sent, and look how long ago the other host's last one is."""
        silent = time.monotonic() - self._heard
        if silent > self.silence_s:
            self._end(self._sentence(f"has been silent for {silent:.1f} s"))
            return
        try:
            self._link.send(Message(Kind.BEAT), wait=False)
        except LinkError as error:
            self._end(self._sentence(str(error)))

    def close(self) -> None:
        """End the connection; that is no loss."""
        self._ending = True
        self._link.close()

    def _receive(self) -> None:
        while True:
            try:
                message = self._link.receive()
            except LinkError as error:
                self._end(self._sentence(str(error)))
                return
            self._heard = time.monotonic()
            if message.kind is Kind.ENDED and message.text:
                self._end(f"{self.name} has ended: {message.text}")
                return
            if message.kind is Kind.ENDED:
                # It will close the connection next.
                self._ending = True
            if message.kind is not Kind.BEAT:
                self._inbox.put(message)

    def _end(self, sentence: str) -> None:
        if not self._ending and self._over.acquire(blocking=False):
            self._inbox.put(sentence)
            self._lost(sentence)

    def _sentence(self, reason: str) -> str:
        return f"{self.name} is lost: it {reason}"


class Pulse:
    """The thread that sends heartbeats to some peers and watches theirs."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self._peers = peers
        self._stop = threading.Event()
        threading.Thread(target=self._run, name="jaxfold-pulse", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(BEAT_S):
            for peer in self._peers:
                peer.beat()
