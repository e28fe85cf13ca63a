"""Rotary angles that are scaled for long prompts, and cached keys."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig

from prefixcache.config import EngineConfig
from prefixcache.engine.loading import prepare_model
from prefixcache.engine.plan import Chunk, plan_step
from prefixcache.engine.rotary import longest_steady_tokens
from prefixcache.types import BlockId, Span
from tests.support.architectures import ROPE_TYPES, llama_with_rope
from tests.support.models import LOGIT_TOLERANCE, prompt_ids

LIMITS = {"longrope": 64}  # elsewhere the model's own 256
SIZE = 4


@pytest.mark.parametrize("rope_type", ROPE_TYPES)
def test_kept_keys_are_right_up_to_the_longest_sequence(rope_type: str) -> None:
    """Fed in pieces beside another, each position has the logits of the model's own forward."""
    config = EngineConfig(kv_memory_bytes=4 << 20, block_size_tokens=SIZE)
    loaded = prepare_model(llama_with_rope(rope_type), config, name="x", keeps_modules=True)
    limit = loaded.info.max_model_tokens
    assert limit == LIMITS.get(rope_type, 256)
    tokens, other = prompt_ids(limit), prompt_ids(limit, seed=2)
    cuts = [0, 1, limit // 8, limit // 4, limit // 4 + 1, limit - 1, limit]
    n_blocks = -(-limit // SIZE)
    tables = [([Span(BlockId(start), n_blocks)],) for start in (0, n_blocks)]
    found = []
    for start, stop in pairwise(cuts):
        chunks = [Chunk(tokens[start:stop], start, tables[0], stop - start)]
        if start == 0:  # a neighbour as long as can be, all at once
            chunks.append(Chunk(other, 0, tables[1], 1))
        step = plan_step(chunks, loaded.store, loaded.model.device)
        found.append(loaded.model.forward(step)[: stop - start])
    wanted = llama_with_rope(rope_type)(input_ids=torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(torch.cat(found), wanted, atol=LOGIT_TOLERANCE, rtol=LOGIT_TOLERANCE)


@pytest.mark.parametrize(("rope_type", "longest"), [("longrope", 64), ("dynamic", 256)])
def test_beyond_the_limit_earlier_positions_change(rope_type: str, longest: int) -> None:
    """What the limit is for: one token more, and the first positions have other logits."""
    model = llama_with_rope(rope_type)
    assert longest_steady_tokens(model.config) == longest
    tokens = torch.tensor([prompt_ids(longest + 1)])
    before, after = model(input_ids=tokens[:, :-1]).logits, model(input_ids=tokens).logits
    assert (before[0] - after[0, :-1]).abs().max() > 100 * LOGIT_TOLERANCE


def test_ropes_that_stay_have_no_limit() -> None:
    """Fixed frequencies, none at all, and layers that each have their own."""
    for rope_type in ("linear", "yarn", "llama3"):
        assert longest_steady_tokens(llama_with_rope(rope_type).config) is None
    assert longest_steady_tokens(LlamaConfig()) is None
    config = Gemma3TextConfig()
    assert longest_steady_tokens(config) is None
    config.rope_parameters["full_attention"] |= {
        "rope_type": "longrope",
        "original_max_position_embeddings": 99,
    }
    assert longest_steady_tokens(config) == 99
    assert longest_steady_tokens(object()) is None
