"""What a chat template does with unusual conversations, found by rendering marker texts and looking for them."""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from typing import Protocol

from jaxfold.chat.messages import TemplateTraits
from jaxfold.chat.types import Message
from jaxfold.chat.types import ToolCall

USER, REPLY, MORE = Message("user", "probe one"), Message("assistant", "probe two"), Message("user", "probe 3")
SYSTEM, LEAD = Message("system", "probe zero"), Message("system", "probe lead")
# The id has the length of those that OpenAI and this server give.
CALL = ToolCall("call_probe00000000000000000000", "probe_name", {"probe_key": "probe_value"})
ASKED = Message("assistant", "", "probe thought", tool_calls=(CALL,))
TOLD = Message("tool", "probe result", tool_call_id=CALL.id)
VALUE = "probe_value"
TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}, "required": []},
    },
}
# What an assistant can say between a tool's result and a user's turn; an empty turn where the template takes one.
BRIDGES = ("", "...")


class Shows(Protocol):
    """Whether all of `texts` reach the prompt of these messages, handed over as `traits` say."""

    def __call__(
        self,
        messages: Sequence[Message],
        *texts: str,
        traits: TemplateTraits | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> bool: ...


def probe(shows: Shows) -> TemplateTraits:
    """The traits of one template. Of one that fails on a plain turn nothing can be learnt."""
    if not shows([USER], USER.content):
        return TemplateTraits()
    # A template may let a late system text take the place of the leading one.
    late = shows([USER, REPLY, SYSTEM, MORE], SYSTEM.content) and shows(
        [LEAD, USER, REPLY, SYSTEM, MORE], LEAD.content, SYSTEM.content
    )
    tools = shows([USER], "probe_tool", tools=[TOOL])
    found = _probe_calls(shows)
    return replace(
        found,
        leading_system=shows([SYSTEM, USER], SYSTEM.content),
        late_system=late,
        user_runs=shows([USER, MORE], MORE.content),
        tools=tools,
        results=found.results and tools,
    )


def _probe_calls(shows: Shows) -> TemplateTraits:
    """How calls, their results and an assistant's reasoning have to be handed over to reach the prompt."""
    ways = [TemplateTraits(text_arguments=text, short_ids=short) for short in (False, True) for text in (False, True)]
    for turns in ([USER, ASKED, TOLD], [USER, ASKED]):
        way = next((one for one in ways if shows(turns, VALUE, traits=one)), None)
        if way is not None:
            return _probe_details(shows, turns, way)
    return TemplateTraits(calls=False, results=shows([USER, REPLY, TOLD], TOLD.content))


def _probe_details(shows: Shows, turns: list[Message], way: TemplateTraits) -> TemplateTraits:
    thinking = replace(way, thought_key="thinking")
    if not shows(turns, ASKED.reasoning, traits=way) and shows(turns, ASKED.reasoning, traits=thinking):
        way = thinking
    spoken = [USER, replace(ASKED, content="probe words"), *turns[2:]]
    way = replace(
        way,
        calls_beside_text=shows(spoken, VALUE, traits=way),
        results=shows(turns, TOLD.content, traits=way),
    )
    if not way.results or shows([*turns, MORE], MORE.content, traits=way):
        return way
    bridges = (text for text in BRIDGES if shows([*turns, Message("assistant", text), MORE], MORE.content, traits=way))
    return replace(way, bridge=next(bridges, None))
