"""Each KV format in the engine: one answer a prompt, however it is computed and whatever is reused.

Between formats answers may differ; within one they must not. In invariant mode that is judged bit
for bit, in the normal mode within what one step of a format makes of a last bit of float32.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from prefixcache.config import EngineConfig
from prefixcache.engine.attention_only import BLOCK_TOKENS
from prefixcache.engine.loading import prepare_model
from prefixcache.engine.parts import RunPart, TailPart
from prefixcache.engine.plan import Chunk, plan_step
from prefixcache.engine.tiling import TILE_KEYS
from prefixcache.errors import ConfigError
from prefixcache.kv import KVLayout, KVStore, LayerGroup, Slots
from prefixcache.types import BlockId, Finished, Span
from tests.engine.test_invariant import ScoredBench, n_changed
from tests.support.architectures import tiny_model
from tests.support.kv import CPU_FORMATS, KV_FORMATS
from tests.support.models import Bench, prompt_ids
from tests.support.storm import Storm

CPU = torch.device("cpu")
ARCHITECTURES = ("llama", "qwen3", "qwen2-mixed", "gemma2", "gpt-oss")
# Of the largest logit: what tiny models' random, wide weights make of rounding keys and values.
NEAR = {"float16": 0.01, "bfloat16": 0.06, "int8": 0.08, "int4": 0.9}


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "int4"),
        ("qwen3", "int8"),
        *(pytest.param(each, "int4", marks=pytest.mark.slow) for each in ARCHITECTURES[1:]),
        *(pytest.param(each, "int8", marks=pytest.mark.slow) for each in ("llama", "gemma2")),
        *(pytest.param("qwen3", each, marks=pytest.mark.slow) for each in ("float16", "bfloat16")),
    ],
)
def test_invariant_logits_are_the_same_however_they_are_fed(architecture: str, name: Any) -> None:
    """Neither chunks, neighbours, shared runs nor old memory changes a bit, nor do block sizes.

    But int4's keys are told from others of their block: there each block size is judged alone.
    """
    served = [
        prepare_model(
            tiny_model(architecture),
            EngineConfig(
                kv_memory_bytes=8 << 20,
                block_size_tokens=block_size,
                invariant=True,
                weights="float32",
                kv_format=name,
            ),
            name="tiny",
        )
        for block_size in (1, 16)
    ]
    alike = [served] if name != "int4" else [[each] for each in served]
    assert all(n_changed(each) == 0 for each in alike)


@pytest.mark.parametrize("name", CPU_FORMATS)
@pytest.mark.parametrize("n_known", [33, 30, 17, 5])
def test_a_hit_anywhere_gives_the_cold_numbers(name: str, n_known: int) -> None:
    """Midway in a block or at its edge: what is reused has the bits that would be computed."""
    bench = ScoredBench(invariant=True, kv_format=name, block_size_tokens=8)
    prompt = prompt_ids(41, seed=12)
    bench.submit("cold", prompt, 8, top_scores=5, read_cache=False, store_cache=False)
    bench.drain()
    bench.run([*prompt[:n_known], *prompt_ids(9, seed=3)], 1)
    bench.submit("warm", prompt, 8, top_scores=5)
    bench.drain()
    assert bench.answers["warm"].cached_tokens == n_known
    assert bench.told["warm"] == bench.told["cold"]


@pytest.mark.parametrize("name", CPU_FORMATS)
def test_a_preempted_request_goes_on_with_the_same_numbers(name: str) -> None:
    """Alone with plenty of room, and in company with hardly any: the same scores."""
    prompts = [prompt_ids(n, seed=n) for n in (50, 33, 40)]

    def told(**settings: Any) -> tuple[dict[str, Any], int]:
        bench = ScoredBench(invariant=True, kv_format=name, **settings)
        for index, prompt in enumerate(prompts):
            bench.submit(f"{index}", prompt, 20, top_scores=3, temperature=1.0, seed=index)
        bench.drain()
        return bench.told, bench.engine.stats().preemptions_total

    info = Bench(kv_format=name).engine.info
    room = 36 * info.block_size_tokens * info.kv_bytes_per_token
    plenty, _ = told()
    little, n_preempted = told(kv_memory_bytes=room, growth_blocks=0)
    assert little == plenty
    assert n_preempted > 0


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("float16", "bfloat16")),
        *("int8", "int4"),
    ],
)
def test_a_storm_changes_no_answer(name: str) -> None:
    """Cancels, preemptions, evictions, drafts and shared runs: answers are those of a quiet day.

    Free blocks are full of NaN, and most guesses are wrong.
    """
    settings: dict[str, Any] = {
        "invariant": True,
        "kv_format": name,
        "architecture": "qwen2-mixed",
    }
    if name == "int4":  # what it rounds to depends on where blocks begin
        settings["block_size_tokens"] = 8
    storm = Storm(31, repeat_rate=0.5, **settings)
    storm.run(25)
    quiet = Bench(**{"block_size_tokens": 4} | settings, prefix_cache=False)
    for each, end in storm.ends.items():
        found = storm.outputs[each]
        assert found or not isinstance(end, Finished)
        if found:
            assert quiet.run(storm.prompts[each], len(found)).token_ids == found
    stats = storm.engine.stats()
    assert stats.cached_tokens_total > 0
    assert stats.drafted_tokens_total > stats.accepted_tokens_total


@pytest.mark.parametrize("name", CPU_FORMATS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_stay_near_the_models_own(architecture: str, name: str) -> None:
    """Rounding keys and values moves logits a little, more with fewer bits, and always some."""
    bench = Bench(architecture, kv_format=name)
    prompt = prompt_ids(60, seed=2)
    bench.run(prompt, 1)
    wanted = bench.loaded.model.plain_logits(prompt)[-1]
    difference = (bench.model.rows[-1] - wanted).abs().max() / wanted.abs().max()
    assert 0 < difference < NEAR[name]


@pytest.mark.parametrize("name", CPU_FORMATS)
def test_chunks_make_no_difference_in_the_normal_mode(name: str) -> None:
    """A prompt in one piece, in many and after a hit gives the same logits but for last bits."""
    rows = []
    for max_step_tokens in (64, 5, 1):
        bench = Bench(kv_format=name, max_step_tokens=max_step_tokens)
        for _ in range(2):  # cold, then with all but a token cached
            bench.run(prompt_ids(45, seed=7), 1)
            rows.append(bench.model.rows[-1])
    limit = NEAR[name] * rows[0].abs().max().item() / 10
    assert all((row - rows[0]).abs().max().item() <= limit for row in rows)


@pytest.mark.parametrize("name", KV_FORMATS)
def test_no_more_than_a_tile_is_decoded_at_a_time(name: str) -> None:
    """Long runs, shared ones and scattered tails are read in pieces, all in one room."""
    group = LayerGroup((0,), 2, 16, 8, None)
    store = KVStore(KVLayout((group,), BLOCK_TOKENS, torch.float32, name), 400, CPU)
    shared, scattered = [Span(BlockId(0), 100)], [Span(BlockId(n), 1) for n in range(398, 200, -2)]
    chunks = [
        Chunk([1], 1599, ([*shared],), n_logits=1),
        Chunk([1] * 40, 1600, ([*shared, Span(BlockId(150), 3)],), n_logits=1),
        Chunk([1], 1500, (scattered,), n_logits=1),
    ]
    reads = [
        part
        for part in plan_step(chunks, store, CPU).groups[0].parts
        if isinstance(part, RunPart | TailPart)
    ]
    rooms = {part.keys.data_ptr() for part in reads if part.keys is not None}
    assert len(rooms) == 1
    for part in reads:
        assert part.keys is not None
        assert part.keys.shape[1] <= TILE_KEYS
        slots = part.slots
        n_keys = len(slots) if isinstance(slots, Slots) else slots.stop - slots.start
        assert n_keys <= TILE_KEYS
        if isinstance(slots, slice):
            assert slots.start % BLOCK_TOKENS == 0
    assert sum(isinstance(part, RunPart) for part in reads) >= 1600 // TILE_KEYS


def test_the_format_is_part_of_the_namespace_and_of_the_pool() -> None:
    """What is cached in one format is no hit in another, and the same memory holds more."""
    plain, small = Bench(), Bench(kv_format="int8")
    assert plain.engine.info.kv_format == "float32, weights float32"
    assert small.engine.info.kv_format == "float32, weights float32, kept as int8"
    assert small.engine.info.pool_blocks > 3 * plain.engine.info.pool_blocks
    assert Bench(kv_format="float32").engine.info.kv_format == plain.engine.info.kv_format


def test_a_format_that_a_device_lacks_is_refused_at_load() -> None:
    """One line names the setting and what to take instead."""
    with pytest.raises(ConfigError, match=r"kv_format = 'fp8'.*int8"):
        Bench(kv_format="fp8")
    with pytest.raises(ConfigError, match="must be one of auto"):
        Bench(kv_format="int3")


@pytest.mark.parametrize("name", CPU_FORMATS)
def test_models_in_16_bits_keep_their_kv_so_too(name: str) -> None:
    """A bfloat16 model reads what it wrote, warm as cold."""
    bench = Bench(dtype=torch.bfloat16, kv_format=name)
    prompt = prompt_ids(33, seed=12)
    cold = bench.run(prompt, 1)
    first = bench.model.rows[-1]
    assert bench.run(prompt, 1).cached_tokens == 32
    assert cold.cached_tokens == 0
    limit = max(NEAR[name], 0.1) * first.abs().max().item()
    assert (bench.model.rows[-1] - first).abs().max().item() <= limit
