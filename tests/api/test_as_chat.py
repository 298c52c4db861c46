"""Refusals of the chat fields under the names of another protocol, and which requests run in the background."""

import pytest

from jaxfold.api.anthropic.fields import FIELDS as ANTHROPIC_FIELDS
from jaxfold.api.http.known_fields import INERT
from jaxfold.api.http.known_fields import SUPPORTED
from jaxfold.api.openai.as_chat import FieldTable
from jaxfold.api.openai.as_chat import Translated
from jaxfold.api.openai.as_chat import is_title
from jaxfold.api.responses.fields import FIELDS as RESPONSES_FIELDS
from jaxfold.chat.types import ContextLengthError
from jaxfold.chat.types import Message
from jaxfold.chat.types import RequestError

NAMES = {
    "tools[1].function.parameters": "tools[0].tools[0].parameters",
    "tools[1]": "tools[0].tools[0]",
    "stop": "ends",
}


@pytest.mark.parametrize(
    ("chat", "own"),
    [
        ("tools[1].function.parameters.x", "tools[0].tools[0].parameters.x"),
        ("tools[1]", "tools[0].tools[0]"),
        ("tools[1].function.name", "tools[0].tools[0].function.name"),
        ("tools[10]", "tools[10]"),
        ("stop", "ends"),
        ("stop[3]", "ends[3]"),
        ("stops", "stops"),
    ],
)
def test_names(chat: str, own: str) -> None:
    with pytest.raises(RequestError) as caught, Translated({}, (), NAMES).renaming():
        raise RequestError(f"{chat} is wrong", param=chat, code="c")
    assert (caught.value.param, caught.value.message, caught.value.code) == (own, f"{own} is wrong", "c")


def test_what_has_no_name_stays() -> None:
    with pytest.raises(RequestError) as caught, Translated({}, (), NAMES).renaming():
        raise RequestError("no")
    assert (caught.value.param, caught.value.message) == (None, "no")
    with pytest.raises(ContextLengthError) as long, Translated({}, (), {"messages": "input"}).renaming():
        raise ContextLengthError("messages are long", "messages", 1, 2, None)
    assert long.value.param == "messages"


def test_titles() -> None:
    user = Message("user", "hi")
    assert is_title((Message("system", "Write a Title"), user))
    assert not is_title((user, Message("system", "title")))
    assert not is_title((Message("system", "title" + "x" * 4096), user))


@pytest.mark.parametrize("table", [ANTHROPIC_FIELDS, RESPONSES_FIELDS], ids=["messages", "responses"])
def test_every_chat_field_is_taken_or_refused(table: FieldTable) -> None:
    """Nothing that a chat client may send is silently without effect here."""
    for name in SUPPORTED["chat"].union(INERT) - table.supported:
        if name in table.inert or name in table.refused:
            continue
        with pytest.raises(RequestError) as caught:
            table.check({name: "x"})
        assert caught.value.param == name
