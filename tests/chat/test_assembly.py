from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jaxfold.chat.assembly import ReplyAssembler
from jaxfold.chat.prepared import Prepared
from jaxfold.chat.reasoning import KNOWN_MARKERS
from jaxfold.chat.reasoning import find_markers
from jaxfold.chat.stops import StopSet
from jaxfold.chat.types import Finish
from jaxfold.chat.types import ReasoningDelta
from jaxfold.chat.types import ReplyEvent
from jaxfold.chat.types import TextDelta
from jaxfold.runtime.api import Finished
from jaxfold.runtime.api import FinishReason
from jaxfold.runtime.api import RequestStats
from jaxfold.runtime.api import SamplingParams
from tests.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
END = TOKENIZER.special_tokens["<|im_end|>"]
THINK, CLOSE = TOKENIZER.special_tokens["<think>"], TOKENIZER.special_tokens["</think>"]


def prepared(*stops: str, think: bool = True, tokenizer: ByteTokenizer = TOKENIZER, **changes: Any) -> Prepared:
    markers = KNOWN_MARKERS[0] if think else None
    return Prepared((1, 2, 3), 99, SamplingParams(), StopSet(stops), tokenizer.eos_ids, markers=markers, **changes)


def stats(completion: int) -> RequestStats:
    return RequestStats(3, completion, 2, 0.0, 0.0, 0.0, None, 1, 0, 0, 0, "sha", 7)


def assemble(
    request: Prepared, batches: list[list[int]], reason: FinishReason = "stop", tokenizer: ByteTokenizer = TOKENIZER
) -> tuple[list[ReplyEvent], Finish]:
    assembler = ReplyAssembler(tokenizer, request)
    events = [event for batch in batches for event in assembler.push(batch)]
    events += assembler.finish(Finished(reason, stats(sum(map(len, batches)))))
    finish = events.pop()
    assert isinstance(finish, Finish)
    return events, finish


def joined(events: list[ReplyEvent], kind: type[TextDelta] | type[ReasoningDelta]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def test_text_usage_and_the_end_token() -> None:
    events, finish = assemble(prepared(), [[*b"Hi"], [*b" you"], [END]])
    assert events == [TextDelta("Hi", tuple(b"Hi")), TextDelta(" you", tuple(b" you"))]
    assert (finish.reason, finish.token_ids, finish.stop_sequence) == ("stop", (*b"Hi you", END), None)
    usage = finish.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens) == (3, 7, 2, 0)
    assert usage.total_tokens == 10


def test_reasons() -> None:
    assert assemble(prepared(), [[97]], "length")[1].reason == "length"
    assert assemble(prepared(), [[97]], "cancelled")[1].reason == "cancelled"
    assert assemble(prepared("a"), [[97]], "length")[1].reason == "stop"


def test_a_character_in_two_events() -> None:
    events, _ = assemble(prepared(), [[0xC3], [0xA9], [0xF0, 0x9F]], "length")
    assert events == [TextDelta("é", (0xC3, 0xA9)), TextDelta("\ufffd", (0xF0, 0x9F))]


def test_a_stop_string_over_events_and_what_comes_after_it() -> None:
    events, finish = assemble(prepared("STOP"), [[*b"ab ST"], [*b"OP cd"], [*b"ef"]])
    assert events == [TextDelta("ab ", tuple(b"ab "))]
    assert (finish.reason, finish.stop_sequence, finish.token_ids) == ("stop", "STOP", tuple(b"ab STOP"))


def test_a_stop_string_that_only_the_flush_completes() -> None:
    events, finish = assemble(prepared("\ufffd"), [[97, 0xC3]], "length")
    assert (joined(events, TextDelta), finish.reason) == ("a", "stop")


def test_reasoning_and_answer() -> None:
    ids = [THINK, *b"\nhm\n", CLOSE, *b"\n\nyes", END]
    for batches in ([ids], [[i] for i in ids]):
        events, finish = assemble(prepared(), batches)
        assert (joined(events, ReasoningDelta), joined(events, TextDelta)) == ("hm", "yes")
        assert finish.usage.reasoning_tokens == 6
    events, finish = assemble(prepared(in_reasoning=True), [[*b"hm", CLOSE, *b"yes"]])
    assert events == [ReasoningDelta("hm", tuple(b"hm")), TextDelta("yes", (CLOSE, *b"yes"))]
    assert finish.usage.reasoning_tokens == 3


def test_an_unclosed_block_is_all_reasoning() -> None:
    events, finish = assemble(prepared(in_reasoning=True), [[*b"hm </th"]], "length")
    assert (joined(events, ReasoningDelta), joined(events, TextDelta)) == ("hm </th", "")
    assert finish.usage.reasoning_tokens == 7
    assert assemble(prepared(in_reasoning=True), [[END]])[1].usage.reasoning_tokens == 1


def test_without_markers_everything_is_text() -> None:
    events, finish = assemble(prepared(think=False), [[THINK, *b"hm", CLOSE, END]])
    assert joined(events, TextDelta) == "<think>hm</think>"
    assert finish.usage.reasoning_tokens == 0


def test_markers_that_are_control_tokens_still_split() -> None:
    tokenizer = ByteTokenizer(control=("<s>", "<|im_end|>", "<think>", "</think>"), added=())
    ids = [tokenizer.special_tokens["<think>"], *b"hm", tokenizer.special_tokens["</think>"], *b"yes"]
    events, finish = assemble(prepared(tokenizer=tokenizer), [ids], tokenizer=tokenizer)
    assert (joined(events, ReasoningDelta), joined(events, TextDelta)) == ("hm", "yes")
    assert finish.usage.reasoning_tokens == 4


def test_a_stop_string_is_found_in_the_reasoning_too() -> None:
    events, finish = assemble(prepared("</think>\n\ny", in_reasoning=True), [[*b"hm", CLOSE, *b"\n\nyes"]])
    assert (joined(events, ReasoningDelta), joined(events, TextDelta)) == ("hm", "")
    assert finish.stop_sequence == "</think>\n\ny"
    assert finish.usage.reasoning_tokens == 3
    held, finish = assemble(prepared("</think>\n\nno", in_reasoning=True), [[*b"hm", CLOSE], [*b"\n\nyes"]])
    assert (joined(held, ReasoningDelta), joined(held, TextDelta)) == ("hm", "yes")
    assert finish.usage.reasoning_tokens == 3


def test_ignored_end_tokens_are_text() -> None:
    events, finish = assemble(prepared(ignore_eos=True), [[97, END, 98]], "length")
    assert joined(events, TextDelta) == "a<|im_end|>b"
    assert finish.usage.completion_tokens == 3


IDS = st.lists(st.sampled_from([*b"ab<>\n \xc3\xa9", THINK, CLOSE, END, 256]), max_size=30)


@given(IDS, st.lists(st.text("ab<>", min_size=1, max_size=3), max_size=2), st.booleans(), st.integers(1, 5))
def test_batches_do_not_matter_and_no_id_is_told_twice(
    ids: list[int], stops: list[str], in_reasoning: bool, size: int
) -> None:
    request = prepared(*stops, in_reasoning=in_reasoning)
    check = request.engine_request("r", TOKENIZER).stop_check
    if check is not None:
        end = next((at for at, token_id in enumerate(ids) if check(token_id)), len(ids))
        ids = ids[: end + 1]
    whole, finish = assemble(request, [ids])
    parts, other = assemble(request, [ids[at : at + size] for at in range(0, len(ids), size)])
    for kind in (TextDelta, ReasoningDelta):
        assert joined(whole, kind) == joined(parts, kind)
    assert (finish.usage, finish.stop_sequence, finish.token_ids) == (other.usage, other.stop_sequence, other.token_ids)
    assert finish.token_ids == tuple(ids)
    told = [i for event in parts if isinstance(event, TextDelta | ReasoningDelta) for i in event.token_ids]
    assert told == ids[: len(told)]


def test_markers_of_several_pieces() -> None:
    tokenizer = ByteTokenizer(control=("<s>", "<|im_end|>", "<|channel>", "<channel|>"), added=())
    markers = find_markers("{{ '<channel|>' }}", {})
    request = replace(prepared(tokenizer=tokenizer), markers=markers)
    channel, close = tokenizer.special_tokens["<|channel>"], tokenizer.special_tokens["<channel|>"]
    events, finish = assemble(request, [[channel, *b"thought\nhm", close, *b"yes"]], tokenizer=tokenizer)
    assert (joined(events, ReasoningDelta), joined(events, TextDelta)) == ("hm", "yes")
    assert finish.usage.reasoning_tokens == 12
