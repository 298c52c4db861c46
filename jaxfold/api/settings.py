"""What the HTTP layer is told by the command line. Nothing here changes while the server runs."""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Literal

from jaxfold.api.access.keys import KeyRing
from jaxfold.api.access.origins import BrowserRules
from jaxfold.api.responses.store import StoreSettings
from jaxfold.api.uploads.store import UploadSettings
from jaxfold.chat.types import Overflow
from jaxfold.runtime.api import SamplingParams

MEBIBYTE = 1 << 20
HostedTools = Literal["reject", "drop"]
Puller = Callable[[str, Callable[[str], None]], None]
"""Fetches a model by its name in the catalogue and tells a function of each step. Blocks; refuses with RequestError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """The checkpoint on disk, for the lists of models. `modified` is in seconds since 1970.

    `quantisation` is the stored type of most of its numbers, and `parameters` how many they are. `context` is the
    window that the model was made for, None where the file does not say.
    """

    path: Path
    size: int
    modified: float
    format: str
    quantisation: str
    parameters: int
    context: int | None = None


def hosts(name: str, ids: tuple[str, ...], file: ModelFile | None) -> bool:
    """True for each id, with or without ":latest", and for the checkpoint's file name, stem and path, in any case."""
    names = [*ids, *(f"{model_id}:latest" for model_id in ids)]
    if file is not None:
        names += [file.path.name, file.path.stem, str(file.path)]
    return name.casefold() in {one.casefold() for one in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Settings of the HTTP layer.

    Attributes:
        model: the id under which the checkpoint is served; of a server without a chat model, the encoder's.
        aliases: further ids that are served by the same checkpoint and listed beside it.
        strict_model: an id that is not served is 404 (`model_not_found`) instead of being served leniently.
        default_sampling: what a request that names no value gets: generation_config.json overlaid by flags.
        sampling_set: the fields of `default_sampling` that one of these two set; the routes under /api have defaults
            of their own for the others.
        model_file: the checkpoint, once it is loaded.
        serves_chat: there is a chat model; else the generating routes are 400.
        encoder: the id of the encoder beside a chat model; without one its ids are `model` and `aliases`.
        encoder_file: the encoder's checkpoint, once it is loaded.
        puller: how /api/pull fetches a model; None answers 403.
        uploads: where uploaded files go; None takes none.
        webui: `/` is the page; else it is the health JSON.
        reasoning_effort: the effort of a chat that names none ("none": no thinking); None is the template's default.
        max_body_mb: largest JSON body in MiB; more is 413 while it is being read.
        body_timeout_s: seconds that a client has to send a whole body; more is 408.
        send_timeout_s: seconds that a client may leave one write of its reply unread before it counts as gone.
        keep_alive_s: seconds an idle connection is kept; also the limit for one whole request header.
        keys: the API keys that requests need. The ring itself looks after a key file that is replaced.
        metrics_open: /metrics needs no key.
        browsers: which web pages may use the server, and under which names.
        drain_seconds: seconds that running replies get to finish after SIGTERM or SIGINT.
        messages_overflow: what becomes of a `max_tokens` above the room on Messages, whose agents ask for far more
            than they need; on the other routes the chat service's own setting counts.
        default_is_rest: a Responses request without a limit gets the rest of the context, since clients of that
            protocol take a reply that was cut for a failure.
        hosted_tools: what becomes of a Responses request that offers tools which OpenAI's servers would run.
        responses: how many replies are kept for `previous_response_id`, and where.
    """

    model: str
    aliases: tuple[str, ...] = ()
    strict_model: bool = False
    default_sampling: SamplingParams = field(default_factory=SamplingParams)
    sampling_set: frozenset[str] = frozenset()
    model_file: ModelFile | None = None
    serves_chat: bool = True
    encoder: str | None = None
    encoder_file: ModelFile | None = None
    puller: Puller | None = None
    uploads: UploadSettings | None = None
    webui: bool = False
    keys: KeyRing = field(default_factory=KeyRing)
    metrics_open: bool = False
    browsers: BrowserRules = field(default_factory=BrowserRules)
    reasoning_effort: str | None = None
    max_body_mb: float = 64
    body_timeout_s: float = 60
    send_timeout_s: float = 300
    keep_alive_s: float = 75
    drain_seconds: float = 30
    messages_overflow: Overflow = "clamp"
    default_is_rest: bool = True
    hosted_tools: HostedTools = "reject"
    responses: StoreSettings = field(default_factory=StoreSettings)

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * MEBIBYTE)

    @property
    def model_ids(self) -> tuple[str, ...]:
        """Every id of the chat model (of the encoder, where there is no chat model), the main one first, each once."""
        return tuple(dict.fromkeys((self.model, *self.aliases)))

    @property
    def encoder_ids(self) -> tuple[str, ...]:
        """Every id of the encoder; none where no encoder is served."""
        if self.encoder is None:
            return ()
        return (self.encoder,) if self.serves_chat else self.model_ids

    @property
    def all_ids(self) -> tuple[str, ...]:
        """Every id that is served, the chat model's first."""
        return tuple(dict.fromkeys((*self.model_ids, *self.encoder_ids)))
