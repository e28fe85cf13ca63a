"""Random requests on one tiny engine whose free memory is poisoned, and what must come of them."""

from __future__ import annotations

import random
from typing import Any, Self

import pytest
import torch
from _pytest.mark import ParameterSet
from transformers import PreTrainedModel

from prefixcache.engine.drafting import Draft, Drafter, Trust
from prefixcache.index import pack
from prefixcache.types import (
    Delta,
    Failed,
    FailureKind,
    Finished,
    GenerationRequest,
    RequestId,
    SamplingParams,
    Span,
    Started,
)
from tests.support.architectures import VOCAB_SIZE
from tests.support.kv import spoil
from tests.support.models import CLEAR_GAP, Bench, prompt_ids


def seeds(n_seeds: int, *quick: int) -> list[ParameterSet]:
    """Return so many seeds, of which only `quick` are no slow tests: one for each thing drawn."""
    return [
        pytest.param(seed, marks=() if seed in quick else pytest.mark.slow)
        for seed in range(n_seeds)
    ]


def poison(bench: Bench) -> None:
    """Fill the store with NaN, and every block again in the moment that it is freed."""
    store = bench.loaded.store
    size = bench.config.block_size_tokens

    def spoil_blocks(group: int, first: int, n_blocks: int) -> None:
        for layer in store.layout.groups[group].layers:
            slots = slice(first * size, (first + n_blocks) * size)
            spoil(plane[:, slots] for plane in store.layer(layer))

    core = bench.engine.cache._core
    whole, windows = iter(core.pools.pools), iter(core.windows.pools)
    pools = [next(windows if is_window else whole) for is_window, _ in core.places]
    for group, pool in enumerate(pools[-len(store.layout.groups) :]):
        spoil_blocks(group, 0, store.pools.group_blocks[group])

        def freed(span: Span, give_back: Any = pool.free, group: int = group) -> None:
            spoil_blocks(group, span.first, span.n_blocks)
            give_back(span)

        pool.free = freed  # type: ignore[method-assign]


def is_greedy(model: PreTrainedModel, prompt: list[int], output: list[int]) -> bool:
    """Whether `output` is what the model says alone: each token the best, or nearly, in a forward.

    Nearly: within the gap below which two logits may change places.
    """
    if not output:
        return True
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + output])).logits[0, len(prompt) - 1 :]
    chosen = logits[range(len(output)), output]
    return bool((logits[: len(output)].max(-1).values - chosen <= CLEAR_GAP).all())


def small_bench(architecture: str = "llama", *, n_tokens: int, **settings: Any) -> Bench:
    """Return an engine whose pool holds `n_tokens`, or the part of a block that is missing more."""
    info = Bench(architecture, **settings).engine.info
    n_blocks = -(-n_tokens // info.block_size_tokens)
    n_bytes = n_blocks * info.block_size_tokens * info.kv_bytes_per_token
    return Bench(architecture, kv_memory_bytes=n_bytes, **settings)


class CheapRows:
    """Costs by which every draft pays."""

    def relative(self, n_rows: int, n_more: int) -> list[float]:
        return [1 + 1e-9 * row for row in range(n_more + 1)]


class WildDrafter:
    """Guesses as ever, or what others were answered, as it was or spoilt, or anything."""

    def __init__(self, inner: Drafter, others: list[list[int]], rng: random.Random) -> None:
        self._inner, self._others, self._rng = inner, others, rng

    def draft(self, output: list[int], n_most: int) -> Draft | None:
        n_said = len(output)
        found = self._inner.draft(output, n_most)
        tokens = list(found.tokens) if found is not None else []
        known = [other for other in self._others if other[:n_said] == output]
        if known and self._rng.random() < 0.8:
            tokens = max(known, key=len)[n_said : n_said + n_most]
        if self._rng.random() < 0.5:
            tokens += [self._rng.randrange(4) for _ in range(n_most - len(tokens))]
        if tokens and self._rng.random() < 0.3:
            tokens[self._rng.randrange(len(tokens))] = self._rng.randrange(VOCAB_SIZE)
        return Draft(tokens, Trust(0.99)) if tokens else None


class Storm:
    """Random requests, cancels, preemptions and evictions on one engine, all from one seed."""

    def __init__(
        self,
        seed: int,
        *,
        preempt_rate: float = 0.15,
        cancel_rate: float = 0.1,
        repeat_rate: float = 0.1,
        **fixed: Any,
    ) -> None:
        """Make it.

        Args:
            preempt_rate: how likely somebody who runs is preempted before a step; 1: always one.
            cancel_rate: how likely somebody is cancelled, before a step and within it.
            repeat_rate: how likely a prompt was asked before, so that its answer can be guessed.
            fixed: settings that are not drawn from the seed; `architecture` among them.
        """
        self.rng = rng = random.Random(seed)
        self._preempt_rate, self._cancel_rate = preempt_rate, cancel_rate
        self._repeat_rate = repeat_rate
        settings: dict[str, Any] = {
            "block_size_tokens": rng.choice([1, 3, 4, 8, 16]),
            "n_tokens": rng.choice([64, 100, 200]),
            "architecture": rng.choice(["qwen2-mixed", "mistral-window", "llama", "gpt2"]),
            "max_step_tokens": rng.choice([2, 7, 16, 64]),
            "max_running_requests": rng.choice([2, 4, 16]),
            "growth_blocks": rng.choice([0, 1, 8, 100]),
            "max_overtakes": rng.choice([0, 1, 4, 16]),
            "admission_order": rng.choice(["fcfs", "cache-aware"]),
            "token_exact_reuse": rng.random() < 0.8,
            "prefix_cache": rng.random() < 0.9,
            "speculation": "auto",
            "max_draft_tokens": rng.choice([1, 3, 15, 40]),
        } | fixed
        self.bench = small_bench(settings.pop("architecture"), **settings)
        self.engine = self.bench.engine
        self.limit = self.engine.info.max_model_tokens
        speculation = self.engine._speculation
        speculation._costs = CheapRows()  # type: ignore[assignment]
        own = speculation._drafter
        if rng.random() < 0.7:
            speculation._drafter = lambda sequence: WildDrafter(  # type: ignore[assignment,method-assign,return-value]
                own(sequence), self._answers_to(sequence.prompt), rng
            )
        poison(self.bench)
        self.stems = [prompt_ids(self.limit, seed=number) for number in range(3)]
        self.prompts: dict[str, list[int]] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ends: dict[str, Finished | Failed] = {}
        self.n_to_come = 0
        self._n_idle = self._n_forwards = 0  # steps in a row in which those who wait had nothing

    def survive(self, n_requests: int, *, rate: float = 0.5) -> Self:
        """Run as `run` does, and check what came of it."""
        self.run(n_requests, rate=rate)
        self.check_end()
        return self

    def run(self, n_requests: int, *, rate: float = 0.5) -> None:
        """Send `n_requests`, one with the given chance before each step, and serve all of them."""
        self.n_to_come = n_requests
        for _ in range(300 * n_requests + 3000):
            if self.n_to_come and self.rng.random() < rate:
                self.submit()
            if not (self.n_to_come or self.engine.has_work):
                return
            self.step()
        raise AssertionError("still at work")

    def submit(self) -> None:
        rng = self.rng
        self.n_to_come -= 1
        stem = rng.choice(self.stems)[: rng.randrange(min(self.limit - 6, 50))]
        if self.outputs and rng.random() < 0.3:  # the next turn of somebody's conversation
            name = f"r{rng.randrange(max(len(self.prompts) - 30, 0), len(self.prompts))}"
            stem = (self.prompts[name] + self.outputs[name])[: self.limit - 6]
        prompt = stem + [rng.randrange(4) for _ in range(rng.randint(1, 5))]
        if self.prompts and rng.random() < self._repeat_rate:
            prompt = self.prompts[rng.choice(sorted(self.prompts)[-30:])]
        name = f"r{len(self.prompts)}"
        self.prompts[name], self.outputs[name] = prompt, []
        request = GenerationRequest(
            request_id=RequestId(name),
            token_ids=pack(prompt),
            sampling=SamplingParams(max_tokens=rng.choice([1, 2, rng.randint(3, 25)])),
            tenant=rng.choice(["a", "a", "b"]),
            adapter=self.adapter_of(name),
            read_cache=rng.random() < 0.9,
            store_cache=rng.random() < 0.9,
            priority=rng.choice([0, 0, 0, -1, 3]),
        )
        self.engine.submit(request)

    def adapter_of(self, name: str) -> str | None:
        """Return what a request that is sent now asks for."""
        return None

    def reference_of(self, name: str) -> PreTrainedModel:
        """Return the model that answers a request alone."""
        return self.bench.reference

    def may_fail(self, name: str) -> set[FailureKind]:
        """Return how a request may fail, if at all."""
        return {FailureKind.CANCELLED}

    def _answers_to(self, prompt: list[int]) -> list[list[int]]:
        return [self.outputs[name] for name, other in self.prompts.items() if other == prompt]

    def cancel_some(self) -> None:
        while self.rng.random() < self._cancel_rate and self.engine._answers.in_flight:
            self.engine.cancel(self.rng.choice(sorted(self.engine._answers.in_flight)))

    def poll(self) -> None:
        self.cancel_some()
        if self.n_to_come and self.rng.random() < 0.1:
            self.submit()
        self.engine.cache.check()

    def preempt_some(self) -> None:
        scheduler = self.engine._scheduler
        for _ in range(4):
            if not scheduler.running or self.rng.random() >= self._preempt_rate:
                return
            scheduler._preempt(self.rng.choice(scheduler.running))
            if self._preempt_rate == 1:
                return

    def step(self) -> None:
        self.cancel_some()
        self.preempt_some()
        if self.rng.random() < 0.05:
            self.engine.cache.evict(self.rng.randint(1, 9))
        n_steps = len(self.bench.model.steps)
        for event in self.engine.step(self.poll):
            assert event.request_id not in self.ends
            if isinstance(event, Delta):
                self.outputs[event.request_id].extend(event.token_ids)
            elif isinstance(event, Started):
                assert event.cached_tokens < event.prompt_tokens
            elif isinstance(event, Finished | Failed):
                self.ends[event.request_id] = event
        self.check_step(n_steps)

    def check_step(self, n_steps: int) -> None:
        """Check what holds after each step, and forget what was recorded of it."""
        self.engine.cache.check()
        config, scheduler = self.bench.config, self.engine._scheduler
        assert all(
            step.token_ids.shape[1] <= config.max_step_tokens
            for step in self.bench.model.steps[n_steps:]
        )
        assert len(scheduler.running) <= config.max_running_requests
        assert all(each.n_overtaken <= config.max_overtakes for each in scheduler.waiting)
        n_forwards = self.engine.stats().steps_total
        is_idle = scheduler.waiting and not scheduler.running and n_forwards == self._n_forwards
        if any(each.awaits_tier for each in scheduler.waiting):
            is_idle = False  # a tier's thread takes the time that the machine gives it
        self._n_idle = self._n_idle + 1 if is_idle else 0
        self._n_forwards = n_forwards
        assert self._n_idle <= 1  # whoever waits alone is admitted in the next step
        self.bench.model.steps.clear()
        self.bench.model.rows.clear()

    def check_end(self) -> None:
        """Check that all have ended as they should, with the answers they have alone; no leak."""
        assert self.ends.keys() == self.prompts.keys()
        stats = self.engine.stats()
        assert (stats.running, stats.waiting, stats.pool.held) == (0, 0, 0)
        assert not self.engine.cache._in_flight.waiters
        assert not self.engine._scheduler.tenants._in_flight
        order = self.engine._scheduler.waiting.order
        assert not getattr(order, "_lengths", None)
        for name, end in self.ends.items():
            assert isinstance(end, Finished) or end.kind in self.may_fail(name)
            assert is_greedy(self.reference_of(name), self.prompts[name], self.outputs[name])
            if isinstance(end, Finished):
                assert len(self.outputs[name]) == end.usage.output_tokens
        self.engine.cache.evict(10_000)
        self.engine.cache.check()
        assert self.engine.stats().pool.free == self.engine.info.pool_blocks
        for pool in self.engine.cache._core.windows.pools:
            assert pool.n_free == pool.n_blocks
