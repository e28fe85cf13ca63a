"""How an answer becomes text, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefixcache.config import EngineConfig
from prefixcache.engine import Engine
from prefixcache.index import pack
from prefixcache.text import Tokenizer
from prefixcache.types import (
    Delta,
    Failed,
    Finished,
    FinishReason,
    GenerationRequest,
    RequestId,
    SamplingParams,
)
from tests.support.architectures import VOCAB_SIZE, tiny_model
from tests.support.models import (
    oracle,
    prompt_ids,
)
from tests.support.tokenizers import write_chat_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_chat_tokenizer(folder)
    return Tokenizer.load(folder)


def finish(engine: Engine, **sampling: Any) -> tuple[str, Finished]:
    params = SamplingParams(**{"max_tokens": 12, "ignore_eos": True} | sampling)
    engine.submit(
        GenerationRequest(request_id=RequestId("r"), token_ids=pack(prompt_ids(9)), sampling=params)
    )
    text = ""
    while True:
        for event in engine.step():
            if isinstance(event, Delta):
                text += event.text
            elif isinstance(event, Finished):
                return text, event


def test_stop_string_that_the_end_completes_is_the_reason(tokenizer: Tokenizer) -> None:
    """Where the last token's text ends in a stop string, it is cut and the reason is stop."""
    settings = EngineConfig(kv_memory_bytes=1 << 20)
    engine = Engine.from_model(tiny_model("llama"), settings, tokenizer=tokenizer)
    text, end = finish(engine)
    assert end.reason is FinishReason.LENGTH
    stop, longer = text[-2:], text[-3:] + "..."  # the longer one could still have come true
    assert stop not in text[:-1]
    found, end = finish(engine, stop=(longer, stop))
    assert found == text[:-2]
    assert end.reason is FinishReason.STOP


@pytest.fixture
def chatty(tokenizer: Tokenizer) -> Engine:
    """An engine with a tokenizer, for which the sixth token of its answer ends texts."""
    model = tiny_model("llama")
    sixth = oracle(model, prompt_ids(9), 6).token_ids[5]
    model.generation_config.eos_token_id = [VOCAB_SIZE - 1, sixth]
    settings = EngineConfig(kv_memory_bytes=1 << 20)
    return Engine.from_model(model, settings, tokenizer=tokenizer)


def test_end_of_text_token_ends_the_answer_unseen(chatty: Engine, tokenizer: Tokenizer) -> None:
    """Any of the model's end tokens gives reason stop and is counted, but is no text."""
    whole, _ = finish(chatty, max_tokens=6)
    text, end = finish(chatty, max_tokens=6, ignore_eos=False)
    assert end.reason is FinishReason.STOP
    assert end.usage.output_tokens == 6
    assert text == tokenizer.decode(oracle(tiny_model("llama"), prompt_ids(9), 5).token_ids)
    assert whole != text


def test_stop_string_ends_the_answer_before_it(chatty: Engine) -> None:
    """The text ends before the stop string, with reason stop and no more tokens."""
    whole, _ = finish(chatty, max_tokens=12)
    stop = whole[4:6]
    text, end = finish(chatty, max_tokens=12, stop=(stop,))
    assert text == whole[: whole.index(stop)]
    assert end.reason is FinishReason.STOP
    assert end.usage.output_tokens < 12


def test_text_is_whole_when_the_answer_ends(chatty: Engine, tokenizer: Tokenizer) -> None:
    """What was held back, half a character or half a stop string, comes with the last token."""
    ids = oracle(tiny_model("llama"), prompt_ids(9), 12).token_ids
    for n_tokens in range(1, 13):
        expected = tokenizer.decode(ids[:n_tokens])
        stop = expected[-1:] + "never"
        assert finish(chatty, max_tokens=n_tokens)[0] == expected
        assert finish(chatty, max_tokens=n_tokens, stop=(stop,))[0] == expected


def test_answer_that_cannot_be_made_into_text_fails_alone(tmp_path: Path) -> None:
    """An error of the tokenizer ends the request that met it, and no other."""
    model = tiny_model("llama")
    token = oracle(model, prompt_ids(9), 3).token_ids[2]
    write_chat_tokenizer(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)

    def spelling(token_id: int) -> str:
        if token_id == token:
            raise RuntimeError("planted")
        return "a"

    tokenizer.spelling = spelling  # type: ignore[method-assign]
    settings = EngineConfig(kv_memory_bytes=1 << 20)
    engine = Engine.from_model(model, settings, tokenizer=tokenizer)
    for name, ends_first in (("bad", False), ("good", True)):
        params = SamplingParams(max_tokens=2 if ends_first else 4)
        engine.submit(
            GenerationRequest(
                request_id=RequestId(name), token_ids=pack(prompt_ids(9)), sampling=params
            )
        )
    endings = {}
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Finished | Failed):
                endings[event.request_id] = type(event)
    assert endings == {"bad": Failed, "good": Finished}
    assert engine.stats().pool.held == 0
