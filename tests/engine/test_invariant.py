"""In invariant mode logits are the same, bit for bit, however a sequence is fed."""

from __future__ import annotations

import copy
import logging
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from prefixcache.config import EngineConfig, WeightsName
from prefixcache.engine import Engine, fixed_attention, loading, plan, segments
from prefixcache.engine.loading import LoadedModel, load_model, prepare_model
from prefixcache.engine.plan import Chunk, plan_step
from prefixcache.engine.weights import tiles
from prefixcache.errors import AdapterError, ConfigError, UnsupportedModelError
from prefixcache.types import BlockId, Delta, Event, Span, TokenScore
from tests.support.architectures import tiny_model
from tests.support.kv import spoil
from tests.support.models import ARCHITECTURES, Bench, prompt_ids

CPU = torch.device("cpu")
SERVED = (*ARCHITECTURES, "mixtral", "glm4-moe")  # two kinds of routers
LENGTHS = (300, 61, 280, 7)
SHARED = 272  # tokens that the first and the third sequence have in common
PACKED: tuple[WeightsName, ...] = ("16bit", "int8")
CHUNKS = (1, 1, 2, 3, 5, 17, 64, 130, 300)


def loaded(
    architecture: str,
    weights: WeightsName,
    block_size: int,
    *,
    invariant: bool,
    seed: int = 1234,
) -> LoadedModel:
    config = EngineConfig(
        kv_memory_bytes=8 << 20,
        block_size_tokens=block_size,
        invariant=invariant,
        weights=weights,
    )
    return prepare_model(tiny_model(architecture, seed=seed), config, name="tiny")


@dataclass
class Feeding:
    """Four sequences in blocks dealt out at random, fed in random pieces and mixes."""

    loaded: LoadedModel
    seed: int

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.tokens = [prompt_ids(n, seed=index) for index, n in enumerate(LENGTHS)]
        self.tokens[2][:SHARED] = self.tokens[0][:SHARED]
        self.tables = [self._tables() for _ in self.loaded.store.layout.groups]
        for group in self.loaded.store.layout.groups:
            for layer in group.layers:
                spoil(self.loaded.store.layer(layer))

    def _tables(self) -> list[list[Span]]:
        """Return each sequence's blocks: in order, in long pieces, or one here and one there."""
        size = self.loaded.store.layout.block_size_tokens
        needed = [-(-n // size) for n in LENGTHS]
        n_pieces = self.rng.choice([1, 3, sum(needed)])
        length = -(-2 * sum(needed) // n_pieces)
        pieces = [range(start, start + length) for start in range(0, 2 * sum(needed), length)]
        self.rng.shuffle(pieces)
        free = iter([block for piece in pieces for block in piece])
        tables = [[Span(BlockId(next(free)), 1) for _ in range(n)] for n in needed]
        if self.rng.random() < 0.5:
            tables[2][: SHARED // size] = tables[0][: SHARED // size]
        return tables

    def logits(self) -> list[Tensor]:
        """Return all logits of each sequence, [its tokens, vocab_size]."""
        done = [0] * len(LENGTHS)
        found: list[list[Tensor]] = [[] for _ in LENGTHS]
        model, store = self.loaded.model, self.loaded.store
        while done != list(LENGTHS):
            # the third may read the first's blocks, so it waits for them
            waits = done[0] < SHARED
            todo = [
                index
                for index, n in enumerate(LENGTHS)
                if done[index] < n and not (index == 2 and waits)
            ]
            chosen = self.rng.sample(todo, self.rng.randint(1, len(todo)))
            sizes = [min(LENGTHS[each] - done[each], self.rng.choice(CHUNKS)) for each in chosen]
            chunks = [
                Chunk(
                    self.tokens[each][done[each] : done[each] + n],
                    done[each],
                    tuple(table[each] for table in self.tables),
                    n_logits=n,
                )
                for each, n in zip(chosen, sizes, strict=True)
            ]
            step = plan_step(chunks, store, CPU, invariant=model.is_invariant)
            parts = torch.split(model.forward(step), sizes)
            for each, n, part in zip(chosen, sizes, parts, strict=True):
                found[each].append(part)
                done[each] += n
        return [torch.cat(each) for each in found]


def n_changed(served: Iterable[LoadedModel]) -> int:
    """Return how many sequences got other logits in some other feeding of one of the models."""
    n_found, wanted = 0, None
    for model in served:
        for seed in range(2):
            found = Feeding(model, 10 * model.store.layout.block_size_tokens + seed).logits()
            wanted = wanted or found
            n_found += sum(
                not torch.equal(one, other) for one, other in zip(found, wanted, strict=True)
            )
    return n_found


def n_different(architecture: str, weights: WeightsName, *, invariant: bool) -> int:
    return n_changed(
        loaded(architecture, weights, block_size, invariant=invariant) for block_size in (1, 16)
    )


@pytest.mark.parametrize(
    ("architecture", "weights"),
    [
        *((architecture, "float32") for architecture in SERVED),
        *((architecture, weights) for architecture in ("llama", "gpt2") for weights in PACKED),
    ],
)
def test_logits_are_the_same_however_they_are_fed(architecture: str, weights: WeightsName) -> None:
    """Neither neighbours nor pieces, blocks, runs or what was written before changes a bit."""
    assert n_different(architecture, weights, invariant=True) == 0


@pytest.mark.parametrize("weights", ["float32", *PACKED])
def test_the_normal_mode_promises_less(weights: WeightsName) -> None:
    """The same feedings do give other bits where nothing sees to it."""
    assert n_different("llama", weights, invariant=False) > 0


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["float32", *PACKED])
def test_a_real_model_is_invariant(weights: WeightsName) -> None:
    """The default model gives the same bits in every feeding."""
    config = EngineConfig(kv_memory_bytes=200 << 20, weights=weights, invariant=True)
    assert n_changed([load_model(config, env=os.environ, report=logging.info)]) == 0


def odd_model() -> LoadedModel:
    """Return an invariant model whose widths leave uneven ends everywhere."""
    return loaded("odd-llama", "float32", 4, invariant=True, seed=5)


def test_odd_widths_are_invariant() -> None:
    """Sizes that are no multiple of what a vector holds change nothing."""
    assert n_changed([odd_model()]) == 0


@pytest.mark.parametrize("weights", ["float32", "16bit"])
def test_norms_of_heads_and_two_kinds_of_angles_are_invariant(weights: WeightsName) -> None:
    """A Gemma 3, whose layers take turns with windows and angles, gives the same bits."""
    assert n_changed([loaded("odd-gemma3", weights, 4, invariant=True)]) == 0


def _products_straight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tiles, "tile_sizes", lambda n_rows, _sizes: iter([n_rows]))


def _activations_straight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tiles, "row_by_row", lambda function, inputs: function(inputs))


def _attention_of_the_normal_mode(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "fixed_reads", lambda *_: None)
    planned = plan._plan_group
    patch.setattr(plan, "_plan_group", lambda *given, **_: planned(*given, invariant=False))


def _merge_of_all_tiles_together(patch: pytest.MonkeyPatch) -> None:
    take = fixed_attention._Merge.take

    def alike(self: Any, part: slice, output: Tensor, lse: Tensor) -> None:
        largest = self._largest[:, part]
        above = torch.maximum(largest, lse).max()  # what neighbours have, too
        self._largest[:, part] = torch.where(largest == -torch.inf, above, largest)
        take(self, part, output, lse)

    patch.setattr(fixed_attention._Merge, "take", alike)


def _segments_as_long_as_there_are_rows(patch: pytest.MonkeyPatch) -> None:
    cut = segments.fixed_reads

    def moved(chunks: Any, store: Any, group: int) -> Any:
        length = 256 if len(chunks) > 1 else 64
        patch.setattr(segments, "SEGMENT_TOKENS", length)
        patch.setattr(fixed_attention, "SEGMENT_TOKENS", length)
        return cut(chunks, store, group)

    patch.setattr(plan, "fixed_reads", moved)


@pytest.mark.parametrize(
    "fault",
    [
        _products_straight,
        _activations_straight,
        _attention_of_the_normal_mode,
        _merge_of_all_tiles_together,
        _segments_as_long_as_there_are_rows,
    ],
)
def test_each_precaution_is_needed(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one of them, bits change."""
    monkeypatch.setattr(loading, "check_invariance", lambda *_: None)
    fault(monkeypatch)
    assert n_changed([odd_model()]) > 0


def test_a_model_that_mixes_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check at load finds what no precaution is for."""
    forward = tiles.RowWise.forward

    def mixed(self: tiles.RowWise, inputs: Tensor) -> Tensor:
        found = forward(self, inputs)
        assert isinstance(found, Tensor)
        return found + inputs.mean() * 1e-6

    monkeypatch.setattr(tiles.RowWise, "forward", mixed)
    with pytest.raises(UnsupportedModelError, match="cannot be served with --invariant"):
        odd_model()


@pytest.mark.parametrize("architecture", SERVED)
def test_invariant_logits_are_the_models_own(architecture: str) -> None:
    """They differ from the unpacked model's own by rounding alone."""
    feeding = Feeding(loaded(architecture, "float32", 4, invariant=True), 3)
    found = feeding.logits()
    model = tiny_model(architecture)
    for tokens, rows in zip(feeding.tokens, found, strict=True):
        wanted = model(input_ids=torch.tensor([tokens])).logits[0]
        torch.testing.assert_close(rows, wanted, atol=1e-3, rtol=1e-3)


class ScoredBench(Bench):
    """A tiny engine that also keeps the scores it told."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.told: dict[str, list[TokenScore]] = defaultdict(list)

    def step(self, poll: Callable[[], None] | None = None) -> list[Event]:
        events = super().step(poll)
        for event in events:
            if isinstance(event, Delta):
                self.told[event.request_id] += event.scores
        return events


class TestEngine:
    """Whole requests: the tokens drawn and every logprob that is told."""

    PROMPTS = tuple(prompt_ids(n, seed=n) for n in (150, 33, 90))

    def answers(self, order: list[int], **settings: Any) -> dict[int, list[TokenScore]]:
        options = {"invariant": True, "weights": "float32", "kv_memory_bytes": 4 << 20}
        bench = ScoredBench(**(options | settings))
        for index in order:
            bench.submit(
                f"{index}",
                self.PROMPTS[index],
                24,
                temperature=1.0,
                top_p=0.9,
                seed=index,
                top_scores=5,
            )
            bench.step()
        bench.drain()
        self.preemptions = bench.engine.stats().preemptions_total
        return {index: bench.told[f"{index}"] for index in order}

    def test_a_request_gets_the_same_alone_and_among_others(self) -> None:
        """Tokens and logprobs are equal, whatever runs beside and however prompts are cut."""
        together = self.answers([0, 1, 2])
        for index in (0, 1, 2):
            assert self.answers([index]) == {index: together[index]}
        assert self.answers([2, 0, 1], max_step_tokens=7, block_size_tokens=16) == together

    def test_a_preempted_request_goes_on_with_the_same_numbers(self) -> None:
        """What is computed again after a preemption has the bits that it had."""
        together = self.answers([0, 1, 2])
        assert self.preemptions == 0
        assert self.answers([0, 1, 2], n_blocks=74, growth_blocks=0) == together
        assert self.preemptions > 0

    def test_a_cached_prompt_gives_what_a_cold_one_gave(self) -> None:
        """The second of two equal requests finds its prompt and gets the same logits."""
        bench = ScoredBench(invariant=True, weights="float32")
        for name in ("cold", "warm"):
            bench.submit(name, self.PROMPTS[0], 8, top_scores=5)
            bench.drain()
        assert bench.answers["cold"].cached_tokens == 0
        assert bench.answers["warm"].cached_tokens
        assert bench.told["warm"] == bench.told["cold"]


def test_what_cannot_be_promised_is_refused() -> None:
    """Weights that stay torch's own, and numbers of 16 bits, are no invariant mode."""
    model = tiny_model("llama")
    with pytest.raises(ConfigError, match="packs weights; say which"):
        Engine.from_model(copy.deepcopy(model), EngineConfig(invariant=True))
    config = EngineConfig(invariant=True, weights="16bit")
    with pytest.raises(ConfigError, match="needs float32 on a CPU, not bfloat16"):
        Engine.from_model(model.to(torch.bfloat16), config)


def test_no_adapter_is_served_beside_invariance(tmp_path: Path) -> None:
    """Its products are not the tiled ones, so it is refused before it changes anything."""
    engine = Bench("llama", weights="float32", invariant=True).engine
    with pytest.raises(AdapterError, match="invariant"):
        engine.load_adapter("a", str(tmp_path))
    assert engine.info.adapters == ()
