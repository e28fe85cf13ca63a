"""What of a request is stored, for whom, and how it is counted."""

from __future__ import annotations

import pytest

from prefixcache.index import Namespace, pack
from prefixcache.types import (
    GenerationRequest,
    RequestId,
    SamplingParams,
)
from tests.support.models import (
    Answer,
    Bench,
    prompt_ids,
)
from tests.support.storm import is_greedy, poison

TWO = SamplingParams(max_tokens=2)


def namespace(bench: Bench) -> Namespace:
    info = bench.engine.info
    return Namespace(model=info.load_id, kv_format=info.kv_format)


def test_only_written_positions_are_matchable() -> None:
    """A prompt that is cancelled one token before a block is full leaves that block out."""
    bench = Bench(max_step_tokens=31)
    poison(bench)
    prompt = prompt_ids(64, seed=1)
    bench.submit("gone", prompt, 4)
    bench.step()
    bench.engine.cancel(RequestId("gone"))
    assert bench.engine.cache.match_length(namespace(bench), pack(prompt)) == 28
    assert is_greedy(bench.reference, prompt, bench.run(prompt, 4).token_ids)


@pytest.mark.parametrize(("n_tokens", "known"), [(4, 20), (5, 24)])
def test_last_block_of_an_answer_is_stored_when_it_is_full(n_tokens: int, known: int) -> None:
    """Prompt and answer less the last token, to the token, are there for the next turn."""
    bench = Bench()
    prompt = prompt_ids(20, seed=1)
    turn = prompt + bench.run(prompt, n_tokens).token_ids
    assert bench.run([*turn, 1, 2], 1).cached_tokens == known


def test_salts_share_nothing() -> None:
    """The same prompt of the same tenant under another salt is a miss."""
    bench = Bench()
    cached = []
    for number, salt in enumerate((None, "a", "b", "a", "")):
        bench.answers[str(number)] = Answer()
        bench.engine.submit(
            GenerationRequest(
                request_id=RequestId(str(number)),
                token_ids=pack(prompt_ids(21)),
                sampling=TWO,
                salt=salt,
            )
        )
        bench.drain()
        cached.append(bench.answers[str(number)].cached_tokens)
    assert cached == [0, 0, 0, 20, 0]


def test_stats_count_every_token_once() -> None:
    """Prompt, cached, computed and output tokens add up over a cold and a warm request."""
    bench = Bench()
    for _ in range(2):
        bench.run(prompt_ids(21), 4)
    stats = bench.engine.stats()
    assert (stats.prompt_tokens_total, stats.cached_tokens_total) == (42, 20)
    assert stats.output_tokens_total == 8
    assert stats.computed_tokens_total == 42 - 20 + 2 * 3  # each answer's last is never fed
    assert (stats.running, stats.waiting, stats.pool.held) == (0, 0, 0)
