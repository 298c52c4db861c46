"""A process's place among several hosts, as its user gives it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Seat:
    """This process's place among the hosts.

    Attributes:
        host, port: where host 0 waits; JAX's own coordinator takes the port after it.
        count: hosts in all.
        host_id: this one's number, from 0.
        secret: what all of them know.
        join_s: seconds that a host waits for the others.
    """

    host: str
    port: int
    count: int
    host_id: int
    secret: bytes
    join_s: float

    @property
    def address(self) -> str:
        return self._at(self.port)

    @property
    def jax_address(self) -> str:
        return self._at(self.port + 1)

    def _at(self, port: int) -> str:
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"
