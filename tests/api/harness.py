"""A real server for tests: Hypercorn on 127.0.0.1, on its own thread and event loop, over a scripted engine."""

import asyncio
import dataclasses
import http.client
import json
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from contextlib import suppress
from typing import Any

from quart import Quart

from jaxfold.api.app import create_app
from jaxfold.api.app import state_of
from jaxfold.api.server import Connections
from jaxfold.api.server import Shutdown
from jaxfold.api.server import serve
from jaxfold.api.settings import ApiSettings
from jaxfold.api.state import ServerState
from jaxfold.chat.service import ChatService
from jaxfold.chat.service import ChatSettings
from jaxfold.chat.template import ChatTemplate
from jaxfold.runtime.api import EngineRequest
from jaxfold.runtime.constraints.grammars import XGrammars
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import ScriptedEngine

MODEL = "scripted"
TIMEOUT_S = 60
CHATML = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
THINKING = CHATML + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
END_ID = ByteTokenizer().special_tokens["<|im_end|>"]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def reply_ids(text: str) -> list[int]:
    """What a model that writes `text` commits."""
    return [*ByteTokenizer().encode(text, parse_special=True), END_ID]


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def chat_body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


@dataclasses.dataclass
class Answer:
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error, after a check that it is one in OpenAI's shape, of one line, that tells nothing of our insides."""
        value = self.json
        assert set(value) == {"error"}
        error: dict[str, Any] = value["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        for word in ("\n", "Traceback", "Error:", "File ", ".py", "object at 0x", "pydantic"):
            assert word not in error["message"]
        assert self.headers["content-type"] == "application/json"
        return error


class Server:
    """A running server. All methods may be called from the test's thread."""

    def __init__(self, app: Quart, engine: ScriptedEngine) -> None:
        self.app = app
        self.engine = engine
        self.port = 0
        self.exit_code: int | None = None
        self.failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shutdown: Shutdown | None = None
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="test-server", daemon=True)
        self._thread.start()
        assert self._listening.wait(TIMEOUT_S)
        if self.failure is not None:
            raise self.failure

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def state(self) -> ServerState:
        return state_of(self.app)

    def ask_to_stop(self) -> None:
        """What SIGTERM does. Nothing, where the server has stopped already."""
        assert self._loop is not None and self._shutdown is not None
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._shutdown.ask)

    def join(self) -> None:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)

    def request(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own. A body that is not bytes is sent as JSON."""
        connection = self.connection()
        try:
            return ask(connection, method, path, body, headers)
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("POST", path, body, headers)

    def open_connections(self) -> int:
        """Connections that the server still holds."""
        assert self._loop is not None
        coroutines = [task.get_coro() for task in asyncio.all_tasks(self._loop)]
        return sum(getattr(one, "__qualname__", "") == Connections.serve.__qualname__ for one in coroutines)

    def works(self) -> None:
        """An ordinary request is served."""
        answer = self.post(CHAT, chat_body(max_tokens=4))
        assert answer.status == 200, answer.body
        assert answer.json["object"] == "chat.completion"

    def last_request(self) -> EngineRequest:
        return self.engine.requests[-1]

    def _run(self) -> None:
        try:
            self.exit_code = asyncio.run(self._serve())
        except BaseException as error:
            self.failure = error
            self._listening.set()

    async def _serve(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._shutdown = Shutdown()
        return await serve(self.app, "127.0.0.1", 0, on_listening=self._on_listening, shutdown=self._shutdown)

    def _on_listening(self, _: str, port: int) -> None:
        self.port = port
        self._listening.set()


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """One request on an open connection."""
    sent = dict(headers or {})
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        sent.setdefault("Content-Type", "application/json")
    connection.request(method, path, body, sent)
    response = connection.getresponse()
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


@contextmanager
def running(
    engine: ScriptedEngine,
    *,
    template: str | None = CHATML,
    tokenizer: ByteTokenizer | None = None,
    chat: ChatSettings | None = None,
    change: Callable[[Quart], None] | None = None,
    **settings: Any,
) -> Iterator[Server]:
    """A server over `engine`; afterwards nothing may be left running in it."""
    tokenizer = tokenizer or ByteTokenizer()
    grammars = XGrammars(tokenizer, engine.vocab_size)
    service = ChatService(engine, tokenizer, ChatTemplate(template, tokenizer), chat, grammars)
    app = create_app(service, ApiSettings(**{"model": MODEL, "drain_seconds": 5, **settings}))
    if change is not None:
        change(app)
    server = Server(app, engine)
    try:
        yield server
        assert engine.wait_idle()
    finally:
        server.ask_to_stop()
        server.ask_to_stop()
        server.join()
        service.close()
        engine.close()
