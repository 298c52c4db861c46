"""What the rest of the program may know about the engine: plain dataclasses and one Protocol, no JAX.

The chat layer builds an `EngineRequest`, hands it to `Engine.submit` together with a sink, and the
engine calls the sink from its own thread with `Tokens` events and then exactly one `Finished` or
`Failed`.  A reply is a pure function of the checkpoint, `prompt_ids`, `sampling` (seed included) and
the stopping rules; nothing here may depend on which other requests are running.
"""

import hashlib
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Literal
from typing import Protocol

ExactnessLevel = Literal["A", "B", "C"]
FinishReason = Literal["stop", "length", "cancelled"]

MASK_63_BITS = (1 << 63) - 1
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The settings of one reply's draw. The rule itself is in `jaxfold.runtime.sampling`.

    `temperature <= 0` is greedy. `top_k == 0`, `top_p >= 1` and `min_p == 0` are off.
    Penalties look only at tokens the reply has generated so far; `penalty_last_n` limits them to the
    latest n of these (-1: all of them, 0: none).  `repeat_penalty` divides positive logits and
    multiplies negative ones, `presence_penalty` is subtracted once per seen token and
    `frequency_penalty` once per occurrence.  `logit_bias` pairs are (token id, added logit).
    `seed` None means: derived from the prompt by `default_seed`.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = -1
    logit_bias: tuple[tuple[int, float], ...] = ()


GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "ebnf", "structural_tag"]


class GrammarError(Exception):
    """A grammar that cannot be enforced. The message is one sentence without a full stop, safe to show a client."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What a reply must match. `text` is a JSON schema, a regular expression, a JSON list of strings, an EBNF grammar
    or a structural tag of xgrammar; nothing for "json_object".
    """

    kind: GrammarKind
    text: str = ""


class Matcher(Protocol):
    """Follows one reply through its grammar, token by token. Used by one thread at a time."""

    def fill(self, mask: Any) -> None:
        """Write the tokens that may come next into a numpy int32[words]: token t is bit t % 32 of word t // 32."""
        ...

    def accept(self, token: int) -> bool:
        """The next token; False (and nothing happened) if it may not come."""
        ...

    def rollback(self, count: int) -> None:
        """Forget the last `count` accepted tokens."""
        ...

    @property
    def complete(self) -> bool:
        """Whether what came so far is a whole match."""
        ...


class Grammar(Protocol):
    """A compiled grammar, shared by all replies that must match it."""

    def matcher(self) -> Matcher:
        """A matcher at the start."""
        ...


class Grammars(Protocol):
    """Compiles grammars for one tokenizer. Thread-safe; a call may take seconds."""

    def compile(self, spec: GrammarSpec) -> Grammar:
        """The grammar.

        Raises:
            GrammarError: it cannot be enforced, or takes too long.
        """
        ...

    def close(self) -> None:
        """Take no more grammars."""
        ...


@dataclass(frozen=True, slots=True)
class Thinking:
    """The reasoning before a reply's answer, and the most tokens it may take.

    The reply is inside it from its start if `opened`, or once its first token is `start` (None: never).  It ends with
    the ids `end`.  If the reply has `budget` - 1 tokens and is still inside, the ids `close` follow.
    """

    opened: bool
    start: int | None
    end: tuple[int, ...]
    budget: int | None = None
    close: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Guide:
    """Which tokens a reply may hold: any inside the reasoning, then those of `grammar` (None: any).

    A complete match ends with one of `end_ids`; with `then_free` the reply goes on as it likes instead.
    """

    thinking: Thinking | None = None
    grammar: Grammar | None = None
    end_ids: frozenset[int] = frozenset()
    then_free: bool = False


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One prompt to continue.

    `stop_ids` end the reply (the id is committed and counted, then the reply is finished); it is
    empty for `ignore_eos`.  `stop_check` is called on the engine's thread once per committed token,
    in order, with that token id; True ends the reply after this token.  It must not raise.
    `cache_salt` keeps prefix reuse apart between callers that must not share it.  `accepted` marks a further prompt
    of a call whose first one the queue took: its limits do not apply, so that a call is taken whole or not at all.

    `logprobs` asks for the log-probability of each token with so many (at most `MAX_LOGPROBS`) of the likeliest ones
    (None: not at all); with `score_prompt` of the prompt's tokens too, but for the first.  They are those of the raw
    distribution at temperature 1, whatever the settings.  `labels` are ids whose log-probabilities as the first token
    of the reply are wanted.  With one of these two `max_tokens` may be 0: then nothing is drawn.

    `guide` says which tokens the reply may hold; log-probabilities are those of the distribution without it.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = SamplingParams()
    stop_ids: frozenset[int] = frozenset()
    stop_check: Callable[[int], bool] | None = None
    background: bool = False
    draft: bool = True
    cache_salt: str = ""
    accepted: bool = False
    logprobs: int | None = None
    score_prompt: bool = False
    labels: tuple[int, ...] = ()
    guide: Guide | None = None


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token's log-probability, and the likeliest tokens at its place with theirs, the likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestStats:
    """What one finished request cost. Times are seconds.

    `drafted` tokens were proposed and `accepted` of them kept; `drafts` has both numbers by proposer.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    time_to_first_token_s: float | None
    rounds: int
    drafted: int
    accepted: int
    preemptions: int
    token_sha: str
    seed: int
    drafts: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids committed since the last event, in order. `scores` has one for each where they were asked for."""

    ids: tuple[int, ...]
    scores: tuple[TokenScore, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Scores of the next prompt tokens, in order; the first event of a request begins with its second token."""

    scores: tuple[TokenScore, ...]


@dataclass(frozen=True, slots=True)
class LabelScores:
    """Log-probabilities of the request's `labels`, in order."""

    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request that ended as asked (or was cancelled)."""

    reason: FinishReason
    stats: RequestStats


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that the engine could not finish. `message` is safe to show."""

    message: str


EngineEvent = Tokens | PromptScores | LabelScores | Finished | Failed
Sink = Callable[[EngineEvent], None]


class EngineError(Exception):
    """Base of the refusals that `Engine.submit` raises. `str(error)` is safe to show a client."""


class QueueFullError(EngineError):
    """The waiting queue holds its maximum of requests or tokens. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotReadyError(EngineError):
    """The engine is loading, draining or broken. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: int = 5) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class CapacityError(EngineError):
    """The request can never fit: prompt plus reply exceed the window or the cache."""


class HostError(EngineError):
    """Several hosts cannot serve together as they were started. The message is one sentence."""


class HostLostError(HostError):
    """A host that took part is gone, and the others cannot go on without it."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts that do not change while the engine runs."""

    model_type: str
    vocab_size: int
    context_length: int
    lanes: int
    page_size: int
    total_pages: int
    exactness: ExactnessLevel
    weight_dtype: str
    compute_dtype: str
    kv_dtype: str
    weight_bytes: int
    cache_bytes: int
    platform: str
    programs: int
    drafting: bool = False
    tp: int = 1


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Counters and gauges at one moment. Totals only ever grow; times are seconds.

    `drafts` has the drafted and accepted tokens by proposer.
    """

    ready: bool
    healthy: bool
    requests_running: int
    requests_waiting: int
    lanes_decoding: int
    lanes_prefilling: int
    requests_total: int
    prompt_tokens_total: int
    cached_tokens_total: int
    completion_tokens_total: int
    generation_tokens_running: int
    prefill_seconds_total: float
    decode_seconds_total: float
    rounds_total: int
    chunks_total: int
    drafted_total: int
    accepted_total: int
    preemptions_total: int
    cancelled_total: int
    failed_total: int
    compiles_after_ready: int
    pages_used: int
    pages_cached: int
    pages_total: int
    lane_kv_usage: Mapping[int, float] = field(default_factory=dict)
    drafts: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class Engine(Protocol):
    """The only door to the engine. Every method is thread-safe and returns at once, except `close`."""

    @property
    def info(self) -> EngineInfo: ...

    def snapshot(self) -> EngineSnapshot: ...

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Queue a request.

        Raises:
            QueueFullError, NotReadyError, CapacityError: nothing was queued and the sink is never called.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """End a request within one round; its sink gets `Finished("cancelled")`. Unknown ids are ignored."""
        ...

    def drain(self) -> None:
        """Refuse new requests from now on with `NotReadyError`; running and queued ones go on."""
        ...

    def close(self, timeout_s: float = 10.0) -> None:
        """Cancel what is left and stop the engine's thread."""
        ...


def token_sha(ids: Sequence[int]) -> str:
    """First 12 hex digits of the SHA-256 of the decimal ids joined by commas (the end token included)."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:12]


def default_seed(prompt_ids: Sequence[int], salt: int = 0) -> int:
    """Seed of a request that names none: SHA-256 of "id,id,...|salt", 8 bytes little-endian, 63 bits."""
    text = ",".join(map(str, prompt_ids)) + f"|{salt}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") & MASK_63_BITS
