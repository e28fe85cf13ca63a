"""The simulator's hits are the engine's."""

from __future__ import annotations

import random
from functools import partial

import pytest

from prefixcache.index.policies import make_policy
from prefixcache.traces import TraceRequest, replayed
from tests.support.architectures import VOCAB_SIZE
from tests.support.models import Bench

BLOCK = 4


def prompts(n_prompts: int, seed: int) -> list[list[int]]:
    """Prompts that go on where others began; none ends with a whole block."""
    rng = random.Random(seed)
    made: list[list[int]] = []
    for _ in range(n_prompts):
        before = rng.choice(made)[: rng.randint(0, 30)] if made and rng.random() < 0.7 else []
        prompt = [*before, *(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 12)))]
        made.append([*prompt, 1] if len(prompt) % BLOCK == 0 else prompt)
    return made


def as_trace(token_prompts: list[list[int]]) -> list[TraceRequest]:
    """Whole blocks of four tokens, each named after all tokens up to its end."""
    names: dict[tuple[int, ...], int] = {}
    return [
        TraceRequest(
            0.0,
            len(prompt),
            1,
            tuple(
                names.setdefault(tuple(prompt[:end]), len(names))
                for end in range(BLOCK, len(prompt) + 1, BLOCK)
            ),
            BLOCK,
        )
        for prompt in token_prompts
    ]


@pytest.mark.parametrize("policy", ["lru", "cost-aware"])
@pytest.mark.parametrize("n_blocks", [11, 16, 40])
def test_the_engine_has_the_simulated_hits(n_blocks: int, policy: str) -> None:
    """The same requests, one after another, find as much cached in both, each of them."""
    token_prompts = prompts(60, seed=n_blocks)
    bench = Bench(
        n_blocks=n_blocks, token_exact_reuse=False, growth_blocks=0, eviction_policy=policy
    )
    simulated = replayed(
        as_trace(token_prompts),
        policy=partial(make_policy, policy),
        capacity_blocks=n_blocks - 1,  # the engine needs one for the token after a whole block
    )
    expected = [BLOCK * hits for _, hits in simulated]
    assert [bench.run(prompt, 1).cached_tokens for prompt in token_prompts] == expected
    assert sum(expected) > 0
    assert bench.engine.cache.evicted_blocks > 0
