"""The released openai, ollama and LangChain clients against an encoder: what people's programs will do."""

import asyncio
from collections.abc import Iterator

import numpy as np
import ollama
import openai
import pytest
from langchain_ollama import OllamaEmbeddings

from tests.api.encoders import CONTEXT
from tests.api.encoders import ENCODER
from tests.api.encoders import encoder_only
from tests.api.encoders import tiny_encoder
from tests.api.harness import TIMEOUT_S
from tests.api.harness import Server
from tests.models.encoder_support import golden

WANTED = golden("bert")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    loaded = tiny_encoder(tmp_path_factory.mktemp("encoder-programs"))
    with encoder_only(loaded) as server:
        yield server
    loaded.engine.close()


def close_to_golden(found: object) -> bool:
    vectors = np.asarray(found, np.float64)
    return bool((vectors * WANTED.vectors).sum(axis=1).min() > 0.999999)


def test_openai(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        # Without encoding_format the client asks for base64 and decodes it.
        found = client.embeddings.create(model=ENCODER, input=list(WANTED.texts), user="me")
        assert close_to_golden([one.embedding for one in found.data])
        assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, WANTED.ids))
        floats = client.embeddings.create(model=ENCODER, input=WANTED.ids[0], encoding_format="float", dimensions=12)
        assert len(floats.data[0].embedding) == 12
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            client.embeddings.create(model=ENCODER, input=[5] * (CONTEXT + 1))
        assert client.models.retrieve(ENCODER).id == ENCODER


def test_ollama(server: Server) -> None:
    with ollama.Client(server.url, timeout=TIMEOUT_S) as client:
        check_ollama(client)


def check_ollama(client: ollama.Client) -> None:
    found = client.embed(ENCODER, list(WANTED.texts))
    assert close_to_golden(found.embeddings) and found.prompt_eval_count == sum(map(len, WANTED.ids))
    assert len(client.embed(ENCODER, "a boat", dimensions=5).embeddings[0]) == 5
    old = client.embeddings(ENCODER, WANTED.texts[0])
    assert list(old.embedding) == list(found.embeddings[0])
    with pytest.raises(ollama.ResponseError, match="not hosted"):
        client.embed("other", "a")
    assert client.show(ENCODER).capabilities == ["embedding"]
    assert [one.model for one in client.list().models] == [ENCODER]


def test_langchain(server: Server) -> None:
    embeddings = OllamaEmbeddings(model=ENCODER, base_url=server.url)
    assert close_to_golden(embeddings.embed_documents(list(WANTED.texts)))
    assert len(embeddings.embed_query("a boat")) == 48
    # LangChain keeps its connections open for as long as the process lives.
    assert embeddings._client is not None and embeddings._async_client is not None
    embeddings._client.close()
    asyncio.run(embeddings._async_client.close())
