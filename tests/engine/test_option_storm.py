"""Whatever requests ask of their answers: each gets what it gets alone, and nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixcache.text import Tokenizer
from tests.support.option_storm import OptionStorm
from tests.support.tokenizers import write_chat_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_chat_tokenizer(folder)
    return Tokenizer.load(folder)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2-mixed", "mistral-window"])
def test_no_order_of_events_changes_what_a_request_asked_for(
    tokenizer: Tokenizer, architecture: str
) -> None:
    """Penalties, seeds, grammars, scores and stops hold through preemptions and neighbours."""
    OptionStorm(5, architecture, tokenizer, preempt_rate=0.3).survive(30)
