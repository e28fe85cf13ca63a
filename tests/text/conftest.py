"""The tokenizers that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixcache.text import PromptEncoder, Tokenizer
from tests.support.tokenizers import write_chat_tokenizer


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    write_chat_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def chat_tokenizer(chat_folder: Path) -> Tokenizer:
    return Tokenizer.load(chat_folder)


@pytest.fixture(scope="session")
def encoder(chat_folder: Path) -> PromptEncoder:
    return PromptEncoder.load(chat_folder)
