"""What a server would have cached of prompts whose tokens are known."""

from __future__ import annotations

import pytest

from prefixcache.errors import ConfigError
from prefixcache.index import pack
from prefixcache.traces import TokenCache


def test_a_prompt_finds_what_was_served_before() -> None:
    """Whole blocks and, where that is so, a part of one; never the last token."""
    for token_exact, hit in ((True, 6), (False, 4)):
        cache = TokenCache(block_tokens=4, token_exact=token_exact)
        assert cache.serve(pack(range(8)), output_tokens=1) == 0
        assert cache.serve(pack([*range(6), 90, 91]), output_tokens=1) == hit
        assert cache.serve(pack(range(8)), output_tokens=1) == (7 if token_exact else 4)


def test_answers_take_room_and_are_never_matched() -> None:
    """With room for both prompts alone the first is found again; not with answers beside them."""
    for n_output, hit in ((1, 4), (5, 0)):
        cache = TokenCache(block_tokens=4, capacity_blocks=3, token_exact=False)
        for start in (0, 100):
            assert cache.serve(pack(range(start, start + 5)), output_tokens=n_output) == 0
        assert cache.serve(pack(range(5)), output_tokens=1) == hit


def test_what_does_not_fit_is_not_stored() -> None:
    """A prompt longer than the cache finds nothing, and harms nothing."""
    cache = TokenCache(block_tokens=4, capacity_blocks=2)
    assert cache.serve(pack(range(40)), output_tokens=1) == 0
    assert cache.serve(pack(range(6)), output_tokens=1) == 0
    assert cache.serve(pack(range(6)), output_tokens=1) == 4


def test_a_cache_without_room_is_refused() -> None:
    """The error names the setting."""
    with pytest.raises(ConfigError, match="capacity_blocks"):
        TokenCache(block_tokens=4, capacity_blocks=0)
