"""What the HTTP layer is told by the command line. Nothing here changes while the server runs."""

from dataclasses import dataclass
from dataclasses import field

from jaxfold.runtime.api import SamplingParams

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Settings of the HTTP layer.

    Attributes:
        model: the id under which the checkpoint is served.
        aliases: further ids that are served by the same checkpoint and listed beside it.
        strict_model: an id that is not served is 404 (`model_not_found`) instead of being served leniently.
        default_sampling: what a request that names no value gets: generation_config.json overlaid by flags.
        max_body_mb: largest JSON body in MiB; more is 413 while it is being read.
        body_timeout_s: seconds that a client has to send a whole body; more is 408.
        send_timeout_s: seconds that a client may leave one write of its reply unread before it counts as gone.
        keep_alive_s: seconds an idle connection is kept; also the limit for one whole request header.
        drain_seconds: seconds that running replies get to finish after SIGTERM or SIGINT.
    """

    model: str
    aliases: tuple[str, ...] = ()
    strict_model: bool = False
    default_sampling: SamplingParams = field(default_factory=SamplingParams)
    max_body_mb: float = 64
    body_timeout_s: float = 60
    send_timeout_s: float = 300
    keep_alive_s: float = 75
    drain_seconds: float = 30

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * MEBIBYTE)

    @property
    def model_ids(self) -> tuple[str, ...]:
        """Every id that is served, the main one first, each once."""
        return tuple(dict.fromkeys((self.model, *self.aliases)))
