"""`jaxfold run`: one prompt answered in the terminal, without a server."""

import asyncio
import dataclasses
import sys
from typing import Any

import click

from jaxfold.api.openai.sampling import SEED_HIGH
from jaxfold.api.openai.sampling import SEED_LOW
from jaxfold.chat.types import ChatRequest
from jaxfold.chat.types import CompletionRequest
from jaxfold.chat.types import Finish
from jaxfold.chat.types import Limits
from jaxfold.chat.types import Message
from jaxfold.chat.types import ReasoningDelta
from jaxfold.cli.engine_flags import engine_flags
from jaxfold.cli.errors import CliError
from jaxfold.cli.parameters import Command
from jaxfold.cli.parameters import log_level_option
from jaxfold.cli.parameters import model_argument
from jaxfold.cli.parameters import option
from jaxfold.cli.parameters import options
from jaxfold.cli.progress import Steps
from jaxfold.cli.progress import configure_logging
from jaxfold.cli.sampling_flags import sampling_flags
from jaxfold.cli.serve_flags import REPLIES
from jaxfold.runtime.api import SamplingParams

_prompt_flags = options(
    option("--system", group="Prompt", help="The system message."),
    option(
        "--raw/--chat",
        default=False,
        group="Prompt",
        help="Continue the prompt as plain text, without the chat template.",
    ),
    option(
        "--max-tokens",
        type=click.IntRange(min=1),
        group=REPLIES,
        show_default="the room that is left",
        help="Length of the reply.",
    ),
    option(
        "--seed",
        type=click.IntRange(SEED_LOW, SEED_HIGH),
        group=REPLIES,
        show_default="made from the prompt",
        help="The same seed and prompt give the same reply; -1 is as if none was given.",
    ),
    option("--stop", multiple=True, group=REPLIES, help="End the reply before this text; may be repeated."),
    option("--stats/--no-stats", default=True, group=REPLIES, help="Show tokens and times on stderr at the end."),
)


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  jaxfold run smollm2:135m "Why is the sky blue?"
  jaxfold run smollm2:135m --system "Answer in French." --temperature 0 "Hello"
  git diff | jaxfold run smollm2:135m --raw - --max-tokens 100""",
)
@model_argument
@click.argument("prompt", metavar="PROMPT", help='The message; "-" reads it from stdin.')
@_prompt_flags
@sampling_flags
@engine_flags
@log_level_option
def run(model: str, prompt: str, log_level: str, **flags: Any) -> None:
    """Answer PROMPT with MODEL on stdout. Nothing listens on any port."""
    configure_logging(log_level)
    text = read_prompt(prompt)
    if flags["raw"] and flags["system"] is not None:
        raise CliError("--system needs the chat template, which --raw leaves out")
    from jaxfold.cli.loading import start

    with Steps() as steps:
        started = start(model, flags, steps)
    try:
        asyncio.run(_answer(started, text, flags))
    finally:
        started.close()


def read_prompt(prompt: str) -> str:
    """PROMPT, or standard input where it is "-".

    Raises:
        CliError: there is no text, or it is not UTF-8.
    """
    try:
        text = sys.stdin.read() if prompt == "-" else prompt
    except UnicodeDecodeError as error:
        raise CliError(f"the prompt on stdin is not UTF-8 ({error.reason} at byte {error.start})") from None
    if not text.strip():
        raise CliError("the prompt is empty")
    return text


def request_of(text: str, sampling: SamplingParams, flags: dict[str, Any]) -> ChatRequest | CompletionRequest:
    """The internal request for one prompt."""
    sampling = dataclasses.replace(sampling, seed=None if flags["seed"] == -1 else flags["seed"])
    limits = Limits(max_tokens=flags["max_tokens"], stop=tuple(flags["stop"]))
    if flags["raw"]:
        return CompletionRequest(prompt=text, sampling=sampling, limits=limits, add_special_tokens=True)
    system = () if flags["system"] is None else (Message("system", flags["system"]),)
    return ChatRequest(messages=(*system, Message("user", text)), sampling=sampling, limits=limits)


async def _answer(started: Any, text: str, flags: dict[str, Any]) -> None:
    service = started.service
    request = request_of(text, started.sampling, flags)
    if isinstance(request, ChatRequest):
        prepared = await service.prepare_chat(request)
    else:
        prepared = await service.prepare_completion(request)
    async with await service.start(prepared) as reply:
        async for event in reply:
            if isinstance(event, Finish):
                click.echo()
                if flags["stats"]:
                    click.echo(stats_line(event), err=True)
            else:
                # Reasoning goes beside the answer, not into what a pipe reads.
                click.echo(event.text, nl=False, err=isinstance(event, ReasoningDelta))


def stats_line(finish: Finish) -> str:
    """Tokens, speeds and identity of a finished reply in one line."""
    stats = finish.stats
    parts = [f"prompt {stats.prompt_tokens} tokens"]
    if stats.cached_tokens:
        parts[0] += f" ({stats.cached_tokens} reused)"
    if stats.prefill_s > 0:
        parts[0] += f" in {stats.prefill_s:.2f} s"
    reply = f"reply {stats.completion_tokens} tokens"
    if stats.decode_s > 0:
        reply += f" in {stats.decode_s:.2f} s ({stats.completion_tokens / stats.decode_s:.1f} tokens/s)"
    parts += [reply, f"ended by {finish.reason}", f"seed {stats.seed}", f"token_sha {stats.token_sha}"]
    return "[" + ", ".join(parts) + "]"
