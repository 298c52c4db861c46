import asyncio
import threading
from collections.abc import AsyncIterator
from collections.abc import Callable
from collections.abc import Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from jaxfold.chat.service import ChatService
from jaxfold.chat.service import ChatSettings
from jaxfold.chat.template import ChatTemplate
from jaxfold.chat.types import ChatRequest
from jaxfold.chat.types import CompletionRequest
from jaxfold.chat.types import ContextLengthError
from jaxfold.chat.types import Limits
from jaxfold.chat.types import Message
from jaxfold.chat.types import RequestError
from jaxfold.runtime.api import NotReadyError
from jaxfold.runtime.api import QueueFullError
from jaxfold.runtime.api import SamplingParams
from jaxfold.tokenizers.base import TokenizerError
from tests.byte_tokenizer import ByteTokenizer
from tests.chat import templates
from tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.asyncio
TOKENIZER = ByteTokenizer()
END = TOKENIZER.special_tokens["<|im_end|>"]
HI = ChatRequest((Message("user", "Hi"),))
HI_IDS = TOKENIZER.encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", parse_special=True)


@asynccontextmanager
async def serving(
    script: Sequence[int] = (*b"Hello", END),
    *,
    template: str | None = templates.CHATML,
    tokenizer: ByteTokenizer = TOKENIZER,
    settings: ChatSettings | None = None,
    **engine_options: Any,
) -> AsyncIterator[tuple[ChatService, ScriptedEngine]]:
    engine = ScriptedEngine(script, **engine_options)
    service = ChatService(engine, tokenizer, ChatTemplate(template, tokenizer), settings)
    try:
        yield service, engine
    finally:
        service.close()
        engine.close()


async def refusal(work: Callable[[], Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await work()
    return caught.value


async def test_a_chat_from_messages_to_text() -> None:
    async with serving() as (service, engine):
        prepared = await service.prepare_chat(HI)
        assert list(prepared.prompt_ids) == HI_IDS
        reply = await (await service.start(prepared)).collect()
        assert (reply.text, reply.reasoning) == ("Hello", "")
        assert (reply.finish.reason, reply.finish.usage.prompt_tokens) == ("stop", len(HI_IDS))
        request = engine.requests[0]
        assert (list(request.prompt_ids), request.stop_ids, request.stop_check) == (HI_IDS, frozenset({END}), None)
        assert request.request_id.startswith("req-")
        assert len(request.request_id) == 16


async def test_every_setting_reaches_the_engine() -> None:
    sampling = SamplingParams(temperature=0.5, seed=7)
    limits = Limits(max_tokens=5, stop=("l",), ignore_eos=True)
    chat = ChatRequest(HI.messages, sampling, limits, background=True, draft=False, cache_salt="s")
    raw = CompletionRequest("Hi", sampling, limits, background=True, draft=False, cache_salt="s")
    async with serving() as (service, engine):
        for prepared in (await service.prepare_chat(chat), await service.prepare_completion(raw)):
            reply = await (await service.start(prepared)).collect()
            assert (reply.text, reply.finish.reason, reply.finish.stop_sequence) == ("He", "stop", "l")
            request = engine.requests[-1]
            assert (request.sampling, request.max_tokens, request.stop_ids) == (sampling, 5, frozenset())
            assert (request.background, request.draft, request.cache_salt) == (True, False, "s")


async def test_template_settings_reach_the_template() -> None:
    async with serving(template="{{ enable_thinking }} {{ x }} {{ tools | length }}") as (service, _):
        request = ChatRequest(HI.messages, tools=({"name": "f"},), template_kwargs={"x": 5}, enable_thinking=True)
        assert bytes((await service.prepare_chat(request)).prompt_ids) == b"True 5 1"


async def test_reasoning_from_an_open_prompt() -> None:
    close = TOKENIZER.special_tokens["</think>"]
    script = [*b"hm\n", close, *b"\n\nyes", END]
    async with serving(script, template=templates.OPEN_THINK) as (service, _):
        prepared = await service.prepare_chat(HI)
        assert prepared.in_reasoning
        reply = await (await service.start(prepared)).collect()
        assert (reply.reasoning, reply.text, reply.finish.usage.reasoning_tokens) == ("hm", "yes", 4)


async def test_a_prompt_that_renders_to_nothing() -> None:
    async with serving(template="{# nothing #}") as (service, engine):
        error = await refusal(lambda: service.prepare_chat(HI))
        assert (error.message, error.param, error.status) == ("rendered prompt is empty", "messages", 400)
        assert not engine.requests


async def test_no_messages() -> None:
    async with serving() as (service, _):
        assert (await refusal(lambda: service.prepare_chat(ChatRequest(())))).param == "messages"


async def test_the_templates_own_refusal() -> None:
    async with serving(template="{{ raise_exception('No such talk.') }}") as (service, _):
        assert (await refusal(lambda: service.prepare_chat(HI))).message == "No such talk."


async def test_stop_strings_are_checked() -> None:
    async with serving() as (service, _):
        bad = Limits(stop=("",))
        assert (await refusal(lambda: service.prepare_chat(ChatRequest(HI.messages, limits=bad)))).param == "stop"
        raw = CompletionRequest("x", limits=Limits(stop=("x",) * 17))
        assert (await refusal(lambda: service.prepare_completion(raw))).param == "stop"


@pytest.mark.parametrize("param", ["messages", "prompt"])
async def test_what_does_not_fit_is_refused_with_the_numbers(param: str) -> None:
    size = len(HI_IDS)
    async with serving(context_length=size + 10) as (service, _):

        async def prepare(max_tokens: int | None, overflow: Any = None) -> int:
            limits = Limits(max_tokens, overflow=overflow)
            if param == "messages":
                prepared = await service.prepare_chat(ChatRequest(HI.messages, limits=limits))
            else:
                prepared = await service.prepare_completion(CompletionRequest(tuple(HI_IDS), limits=limits))
            return prepared.max_tokens

        assert await prepare(10) == 10
        assert await prepare(None) == 10
        assert await prepare(11, "clamp") == 10
        error = await refusal(lambda: prepare(11))
        assert isinstance(error, ContextLengthError)
        assert (error.code, error.param, error.status) == ("context_length_exceeded", param, 400)
        assert error.message.startswith(f"This server's maximum context length is {size + 10} tokens")
        assert all(part in error.message for part in (f" {size} tokens", " 11 ", f"make {size + 11}", "at most 10"))
        assert (error.context_length, error.prompt_tokens, error.reply_tokens) == (size + 10, size, 11)
        assert (await refusal(lambda: prepare(0))).param == "max_tokens"


async def test_a_prompt_that_leaves_no_room() -> None:
    size = len(HI_IDS)
    async with serving(context_length=size, settings=ChatSettings(reply_limit="clamp")) as (service, _):
        error = await refusal(lambda: service.prepare_chat(HI))
        assert isinstance(error, ContextLengthError)
        assert error.message.startswith(f"This server's maximum context length is {size} tokens")
        assert (error.prompt_tokens, error.reply_tokens) == (size, None)
        assert (await service.prepare_completion(CompletionRequest(tuple(HI_IDS[:-1])))).max_tokens == 1


async def test_limits_from_the_settings() -> None:
    few = ChatSettings(default_max_tokens=3, reply_limit="clamp")
    async with serving(context_length=50, settings=few) as (service, _):
        assert (await service.prepare_completion(CompletionRequest("abc"))).max_tokens == 3
        assert (await service.prepare_completion(CompletionRequest("abc", limits=Limits(99)))).max_tokens == 47
        strict = CompletionRequest("abc", limits=Limits(99, overflow="reject"))
        assert isinstance(await refusal(lambda: service.prepare_completion(strict)), ContextLengthError)
    async with serving(context_length=50, settings=ChatSettings(default_max_tokens=None)) as (service, _):
        assert (await service.prepare_completion(CompletionRequest("abc"))).max_tokens == 47


class RefusingTokenizer(ByteTokenizer):
    """Cannot encode a text with an x in it."""

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        if "x" in text:
            raise TokenizerError("no x")
        return super().encode(text, add_special=add_special, parse_special=parse_special)


async def test_a_text_that_cannot_be_tokenised_is_refused() -> None:
    async with serving(tokenizer=RefusingTokenizer()) as (service, _):
        chat = await refusal(lambda: service.prepare_chat(ChatRequest((Message("user", "x"),))))
        raw = await refusal(lambda: service.prepare_completion(CompletionRequest("x")))
        assert [(error.param, "no x" in error.message) for error in (chat, raw)] == [
            ("messages", True),
            ("prompt", True),
        ]
        assert (await service.prepare_completion(CompletionRequest("half \ud83d pair"))).prompt_ids


class CountingTokenizer(ByteTokenizer):
    """Counts what it is asked to encode."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded = 0

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        self.encoded += 1
        return super().encode(text, add_special=add_special, parse_special=parse_special)


async def test_a_hopelessly_long_prompt_is_not_tokenised() -> None:
    tokenizer = CountingTokenizer()
    async with serving(tokenizer=tokenizer, context_length=100) as (service, _):
        chat = ChatRequest((Message("user", "<|im_end|>" + "x" * 5000),))
        for error in (
            await refusal(lambda: service.prepare_chat(chat)),
            await refusal(lambda: service.prepare_completion(CompletionRequest("x" * 5000))),
        ):
            assert isinstance(error, ContextLengthError)
            assert "at least" in error.message
            assert 100 <= error.prompt_tokens <= 5100
        assert tokenizer.encoded == 0


async def test_a_hopelessly_long_request_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (service, engine):
        window = engine.info.context_length

        def work(*_: Any, **__: Any) -> Any:
            raise AssertionError("worked on a prompt that cannot fit")

        monkeypatch.setattr(service.template, "render", work)
        monkeypatch.setattr(service, "_check_ids", work)
        chat = ChatRequest((Message("user", "a" * 200 * window),))
        ids = CompletionRequest((1,) * window)
        for error in (
            await refusal(lambda: service.prepare_chat(chat)),
            await refusal(lambda: service.prepare_completion(ids)),
        ):
            assert error.code == "context_length_exceeded"
            assert f"maximum context length is {window} tokens" in error.message


async def test_token_prompts_are_checked() -> None:
    async with serving(vocab_size=300) as (service, _):
        assert (await service.prepare_completion(CompletionRequest((0, 299)))).prompt_ids == (0, 299)
        for bad in ((1, 300), (1, -1)):
            error = await refusal(partial(service.prepare_completion, CompletionRequest(bad)))
            assert (error.param, error.status) == ("prompt[1]", 400)
        assert (await refusal(lambda: service.prepare_completion(CompletionRequest(())))).param == "prompt"
    async with serving(vocab_size=200) as (service, _):
        assert "no weights" in (await refusal(lambda: service.prepare_chat(HI))).message


async def test_an_empty_prompt_starts_from_the_start_token() -> None:
    async with serving() as (service, _):
        assert (await service.prepare_completion(CompletionRequest(""))).prompt_ids == (TOKENIZER.bos_id,)
    async with serving(tokenizer=ByteTokenizer(bos=None)) as (service, _):
        error = await refusal(lambda: service.prepare_completion(CompletionRequest("")))
        assert error.param == "prompt"


async def test_raw_prompts_may_hold_control_tokens() -> None:
    async with serving(tokenizer=ByteTokenizer(add_bos=True)) as (service, _):
        assert (await service.prepare_completion(CompletionRequest("a<|im_end|>"))).prompt_ids == (97, END)
        request = CompletionRequest("a", add_special_tokens=True)
        assert (await service.prepare_completion(request)).prompt_ids == (TOKENIZER.bos_id, 97)


async def test_the_tokenize_helpers_agree_with_generation() -> None:
    async with serving(context_length=4) as (service, _):
        assert list(await service.tokenize_chat(HI)) == HI_IDS
        assert await service.tokenize_text("a<|im_end|>") == (97, END)
        assert await service.tokenize_text("") == ()
        assert await service.detokenize([97, END, 98]) == "a<|im_end|>b"
        assert (await refusal(lambda: service.detokenize([97, 999]))).param == "tokens[1]"


async def test_refusals_of_the_engine_come_from_start() -> None:
    async with serving() as (service, engine):
        prepared = await service.prepare_chat(HI)
        engine.refuse = QueueFullError("full", retry_after=3)
        with pytest.raises(QueueFullError, match="full"):
            await service.start(prepared)
        engine.refuse = None
        engine.ready = False
        with pytest.raises(NotReadyError):
            await service.start(prepared)
        engine.ready = True
        engine.context_length = 5
        error = await refusal(lambda: service.start(prepared))
        assert (error.code, error.param) == ("context_length_exceeded", "messages")
        engine.context_length = 1 << 16
        assert (await (await service.start(prepared)).collect()).text == "Hello"


class BlockingTokenizer(ByteTokenizer):
    """Encodes nothing until it is released, and says which thread it was on."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()
        self.threads: set[str] = set()

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        self.threads.add(threading.current_thread().name.rsplit("_", 1)[0])
        self.release.wait(10)
        return super().encode(text, add_special=add_special, parse_special=parse_special)


async def test_preparation_is_off_the_loop_and_bounded() -> None:
    tokenizer = BlockingTokenizer()
    async with serving(tokenizer=tokenizer, settings=ChatSettings(max_preparing=3)) as (service, _):
        request = CompletionRequest("x")
        tasks = [asyncio.create_task(service.prepare_completion(request)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await service.prepare_completion(request)
        tasks[2].cancel()
        await asyncio.gather(tasks[2], return_exceptions=True)
        extra = asyncio.create_task(service.prepare_completion(request))
        tokenizer.release.set()
        assert [(await task).prompt_ids for task in (*tasks[:2], extra)] == [(120,)] * 3
        assert tokenizer.threads == {"jaxfold-prepare"}
        assert (await service.prepare_completion(request)).prompt_ids == (120,)


async def test_a_closed_service_refuses() -> None:
    async with serving() as (service, _):
        service.close()
        with pytest.raises(NotReadyError):
            await service.prepare_chat(HI)
