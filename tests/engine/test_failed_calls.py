"""Calls of the library that fail or are left, and those that come after."""

from __future__ import annotations

from collections.abc import Generator
from typing import cast

import pytest

from prefixcache.config import EngineConfig
from prefixcache.engine import LocalModel
from prefixcache.errors import EngineError, TokenIdError
from prefixcache.types import (
    SamplingParams,
)
from tests.support.architectures import tiny_model
from tests.support.models import (
    prompt_ids,
)

TWO = SamplingParams(max_tokens=2)


@pytest.fixture
def local() -> LocalModel:
    return LocalModel.from_model(tiny_model("llama"), EngineConfig(kv_memory_bytes=1 << 20))


def test_refused_prompt_spoils_no_later_call(local: LocalModel) -> None:
    """After a call that failed, the next one answers."""
    for bad, error in (([], EngineError), ([-1], TokenIdError)):
        with pytest.raises(error):
            local.generate([prompt_ids(5), bad], TWO)
        assert len(local.generate([prompt_ids(5)], TWO)[0].token_ids) == 2


def test_closed_stream_spoils_no_later_call(local: LocalModel) -> None:
    """A stream that is left early is cancelled, and the next call answers."""
    stream = local.stream(prompt_ids(5), SamplingParams(max_tokens=50))
    next(stream)
    cast(Generator[str], stream).close()
    assert len(local.generate([prompt_ids(5)], TWO)[0].token_ids) == 2


def test_open_streams_keep_their_own_events(local: LocalModel) -> None:
    """Streams read by turns, and calls between, each get their own tokens and end."""
    long, short = (local.stream(prompt_ids(5), SamplingParams(max_tokens=n)) for n in (9, 3))
    assert len([next(long), next(short)]) == 2
    assert len(local.generate([prompt_ids(6)], TWO)[0].token_ids) == 2
    assert len(list(long)) == 8
    assert len(list(short)) == 2
