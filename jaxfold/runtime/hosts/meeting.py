"""Who takes part: host 0 waits for the others at one address and takes those that have what it has itself."""

import json
import logging
import socket
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Final

from jaxfold.runtime.api import HostError
from jaxfold.runtime.hosts.facts import difference
from jaxfold.runtime.hosts.frames import Kind
from jaxfold.runtime.hosts.frames import Message
from jaxfold.runtime.hosts.link import HELLO_S
from jaxfold.runtime.hosts.link import Link
from jaxfold.runtime.hosts.link import LinkError
from jaxfold.runtime.hosts.link import SecretError
from jaxfold.runtime.hosts.seat import Seat

LOG = logging.getLogger(__name__)
RETRY_S: Final = 0.2
Facts = Mapping[str, str]
Progress = Callable[[str], None]


def gather(seat: Seat, facts: Facts, progress: Progress) -> list[Link]:
    """Host 0's side: a link to each of the others, in order of their numbers.

    Raises:
        HostError: the address cannot be had, or somebody does not come in time.
    """
    found: dict[int, Link] = {}
    try:
        _gather(seat, facts, progress, found)
    except BaseException:
        for link in found.values():
            link.close()
        raise
    return [found[host_id] for host_id in sorted(found)]


def _gather(seat: Seat, facts: Facts, progress: Progress, found: dict[int, Link]) -> None:
    """`gather`, into `found`."""
    deadline = time.monotonic() + seat.join_s
    _listen(seat.host, seat.port + 1, "JAX's own coordinator needs").close()
    with _listen(seat.host, seat.port, "the other hosts come to") as listener:
        progress(f"waiting at {seat.address} for {_names(seat, found)}")
        while len(found) < seat.count - 1:
            left = deadline - time.monotonic()
            if left <= 0:
                raise HostError(f"{_names(seat, found)} did not come to {seat.address} within {seat.join_s:g} s")
            listener.settimeout(left)
            try:
                sock, address = listener.accept()
            except TimeoutError:
                continue
            link = _welcomed(sock, address[0], seat, facts, found)
            if link is not None:
                if link.host_id in found:
                    found[link.host_id].close()
                found[link.host_id] = link
                LOG.info("%s is here", f"host {link.host_id}")
    for link in found.values():
        try:
            link.send(Message(Kind.WELCOME))
        except LinkError as error:
            raise HostError(f"host {link.host_id} went away again: it {error}") from None


def join(seat: Seat, facts: Facts, progress: Progress) -> Link:
    """A follower's side: the link to host 0, once all hosts are there.

    Raises:
        HostError: nobody answers in time, or host 0 refuses; with its reason.
    """
    deadline = time.monotonic() + seat.join_s
    progress(f"looking for host 0 at {seat.address}")
    link = _connected(seat, deadline)
    try:
        link.send(Message(Kind.FACTS, text=json.dumps(dict(facts))))
        progress("waiting for the other hosts")
        answer = link.receive(timeout=max(deadline - time.monotonic(), HELLO_S))
    except LinkError as error:
        link.close()
        raise HostError(f"host 0 at {seat.address} did not take this host: it {error}") from None
    if answer.kind is not Kind.WELCOME:
        link.close()
        raise HostError(f"host 0 at {seat.address} refuses this host: {answer.text}")
    # It is host 0 that is watched over this link.
    link.host_id = 0
    return link


def _connected(seat: Seat, deadline: float) -> Link:
    """A link to host 0, which may still have to be started."""
    reason = "nobody answers"
    while True:
        try:
            sock = socket.create_connection((seat.host, seat.port), timeout=HELLO_S)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        else:
            try:
                return Link.offer(sock, seat.secret, seat.host_id)
            except SecretError:
                sock.close()
                raise HostError(f"host 0 at {seat.address} does not have the secret of this host") from None
            except LinkError as error:
                sock.close()
                reason = f"what answers there {error}"
        if time.monotonic() + RETRY_S > deadline:
            raise HostError(f"host 0 cannot be reached at {seat.address} ({reason}, for {seat.join_s:g} s)")
        time.sleep(RETRY_S)


def _welcomed(sock: socket.socket, address: str, seat: Seat, facts: Facts, found: Mapping[int, Link]) -> Link | None:
    """The link to a host that came, None where it was refused. What is wrong is logged, and told to it."""
    try:
        link = Link.accept(sock, seat.secret)
    except LinkError as error:
        LOG.warning("a connection from %s was refused: it %s", address, error)
        sock.close()
        return None
    try:
        refusal = _refusal(link, link.receive(timeout=HELLO_S), seat, facts, found)
        if refusal is None:
            return link
        LOG.warning("host %d at %s was refused: %s", link.host_id, address, refusal)
        link.send(Message(Kind.REFUSED, text=refusal))
    except LinkError as error:
        LOG.warning("host %d at %s was refused: it %s", link.host_id, address, error)
    link.close()
    return None


def _refusal(link: Link, message: Message, seat: Seat, facts: Facts, found: Mapping[int, Link]) -> str | None:
    """Why a host cannot take part, None if it can."""
    try:
        theirs = json.loads(message.text)
    except ValueError:
        theirs = None
    if message.kind is not Kind.FACTS or not isinstance(theirs, dict):
        return "it does not say what it has"
    differing = difference(theirs, facts)
    if differing is not None:
        return differing
    if not 0 < link.host_id < seat.count:
        return f"--host-id {link.host_id} is none of {seat.count} hosts, which are numbered from 0"
    if link.host_id in found and not found[link.host_id].gone:
        return f"there is a host with --host-id {link.host_id} already"
    return None


def _listen(host: str, port: int, what: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise HostError(f"--coordinator: cannot listen on {host} port {port}, which {what}: {reason}") from None
    return listener


def _names(seat: Seat, found: Mapping[int, Link]) -> str:
    missing = [str(host_id) for host_id in range(1, seat.count) if host_id not in found]
    return f"host{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
