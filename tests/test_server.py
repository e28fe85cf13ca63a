"""The real server as a process, used from outside with the official client."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.support.models import write_tiny_model
from tests.support.servers import Server, running_server

MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Answer in one word, and kindly. " * 4},
    {"role": "user", "content": "hello"},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models") / "little"
    write_tiny_model(folder)
    arguments = ["--model", str(folder), "--kv-memory", "8MiB", "--threads", "1"]
    with running_server(arguments) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_model_is_listed_by_its_name(client: OpenAI) -> None:
    """A model folder is served under the folder's name."""
    assert [model.id for model in client.models.list()] == ["little"]


def test_streamed_and_unstreamed_answers_agree(client: OpenAI) -> None:
    """The same greedy request gives the same text and usage either way, cached on repetition."""
    answer = client.chat.completions.create(
        model="little", messages=MESSAGES, max_tokens=12, temperature=0
    )
    stream = client.chat.completions.create(
        model="little",
        messages=MESSAGES,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == answer.choices[0].message.content
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert [reason for reason in reasons if reason] == [answer.choices[0].finish_reason]
    first, second = answer.usage, chunks[-1].usage
    assert first is not None
    assert second is not None
    assert first.prompt_tokens_details is not None
    assert second.prompt_tokens_details is not None
    assert first.prompt_tokens == second.prompt_tokens
    assert first.completion_tokens == second.completion_tokens
    assert first.prompt_tokens_details.cached_tokens == 0
    assert (second.prompt_tokens_details.cached_tokens or 0) >= first.prompt_tokens - 16


def test_sigterm_lets_running_streams_end(tmp_path: Path) -> None:
    """A stop in mid-stream delivers the rest of the answer, and the process exits with 0."""
    write_tiny_model(tmp_path / "little")
    arguments = ["--model", str(tmp_path / "little"), "--kv-memory", "8MiB", "--threads", "1"]
    with (
        running_server(arguments) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = client.completions.create(
            model="little",
            prompt="hello",
            max_tokens=300,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        threading.Timer(0.1, server.process.send_signal, [signal.SIGTERM]).start()
        chunks = list(stream)
        assert chunks[-1].choices[0].finish_reason == "length"
        assert server.process.wait(timeout=60) == 0
