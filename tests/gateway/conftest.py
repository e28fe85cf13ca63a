"""A gateway over a model of three pieces, for tests that make no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gateways import Gateway, echo_backend, running_gateway
from tests.support.tokenizers import write_piece_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    write_piece_tokenizer(made, [b"one", b" two", b" three"])
    return made


@pytest.fixture
async def gateway(folder: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(echo_backend(folder)) as running:
        yield running
