"""Requests among others: batches, cancellation, preemption, limits, failures."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from prefixcache.config import EngineConfig
from prefixcache.engine.plan import Step
from prefixcache.errors import ConfigError, EngineError
from prefixcache.types import Delta, Failed, FailureKind, FinishReason, RequestId
from tests.support.models import Bench, oracle, prompt_ids

BLOCK = 4


def test_equal_prefixes_submitted_together_answer_as_alone() -> None:
    """Eight requests that share a cold prefix never read KV that is not written yet."""
    bench = Bench(max_step_tokens=40)
    shared = prompt_ids(64, seed=1)
    for number in range(8):
        bench.submit(f"r{number}", [*shared, 1 + number], 16)
    bench.drain()
    for number in range(8):
        expected = oracle(bench.reference, [*shared, 1 + number], 16)
        assert expected.is_same(bench.answers[f"r{number}"].token_ids)
    assert bench.n_held == 0


def test_requests_admitted_after_a_prefix_was_read_reuse_it() -> None:
    """A step that is full lets later requests wait, and they hit what the first has read."""
    bench = Bench(max_step_tokens=32)
    shared = prompt_ids(64, seed=1)
    for number in range(4):
        bench.submit(f"r{number}", [*shared, 1 + number], 2)
    bench.drain()
    assert bench.answers["r0"].cached_tokens == 0
    assert [bench.answers[f"r{number}"].cached_tokens for number in (1, 2, 3)] == [64, 64, 64]


def test_preempted_requests_resume_with_the_same_answer() -> None:
    """A pool too small for two growing requests preempts one; neither answer changes."""
    bench = Bench(n_blocks=16)
    first, second = prompt_ids(20, seed=1), prompt_ids(20, seed=2)
    bench.submit("first", first, 24)
    bench.submit("second", second, 24)
    bench.drain()
    assert bench.engine.stats().preemptions_total > 0
    for name, prompt in (("first", first), ("second", second)):
        answer = bench.answers[name]
        assert oracle(bench.reference, prompt, 24).is_same(answer.token_ids)
        assert answer.finished.usage.cached_tokens == 0  # its own output is never a hit
        assert answer.finished.usage.output_tokens == 24
    assert bench.n_held == 0


def test_resumed_output_is_stored_once() -> None:
    """After a preemption the tree knows prompt and answer once, not the answer twice."""
    bench = Bench(n_blocks=16)
    first, second = prompt_ids(20, seed=1), prompt_ids(20, seed=2)
    bench.submit("first", first, 16)
    bench.submit("second", second, 16)
    bench.drain()
    assert bench.engine.stats().preemptions_total > 0
    output = bench.answers["second"].token_ids
    known = bench.run([*second, *output, 7], 1)
    assert known.cached_tokens == (len(second) + len(output) - 1) // BLOCK * BLOCK
    bench.engine.cache.evict(10_000)
    bench.run([*second, *output], 1)
    doubled = bench.run([*second, *output, *output, 7], 1)
    assert doubled.cached_tokens == len(second) + len(output)


def test_many_long_outputs_in_a_small_pool_all_finish() -> None:
    """Twelve requests in a pool for three go on, one after another, without a livelock."""
    bench = Bench(n_blocks=36)
    for number in range(12):
        bench.submit(f"r{number}", prompt_ids(10, seed=number), 36)
    order: list[str] = []
    for _ in range(3000):
        if not bench.engine.has_work:
            break
        events = bench.step()
        assert any(isinstance(event, Delta) for event in events) or not order
        order.extend(event.request_id for event in events if isinstance(event, Delta))
    for number in range(12):
        expected = oracle(bench.reference, prompt_ids(10, seed=number), 36)
        assert expected.is_same(bench.answers[f"r{number}"].token_ids)
    assert order[:1] == ["r0"]
    assert bench.engine.stats().preemptions_total > 0
    assert bench.answers["r0"].finished.usage.output_tokens == 36
    assert bench.n_held == 0


def test_two_prompts_that_fit_only_one_at_a_time_both_complete() -> None:
    """Half-read prompts never block each other: the second waits for its whole room."""
    bench = Bench(n_blocks=20, max_step_tokens=8)
    for name, seed in (("a", 1), ("b", 2)):
        bench.submit(name, prompt_ids(14 * BLOCK, seed=seed), 2)
    bench.drain(max_steps=60)
    assert bench.answers["a"].finished.reason is FinishReason.LENGTH
    assert bench.answers["b"].finished.reason is FinishReason.LENGTH


def test_queued_request_matches_at_admission_not_before() -> None:
    """What was evicted while a request waited is computed again."""
    bench = Bench(n_blocks=16, admission_order="fcfs")
    prompt = prompt_ids(16, seed=1)
    bench.run(prompt, 1)
    bench.submit("big", prompt_ids(60, seed=2), 4)
    bench.submit("queued", [*prompt, 5, 6], 6)
    bench.drain()
    answer = bench.answers["queued"]
    assert answer.cached_tokens == 0
    assert oracle(bench.reference, [*prompt, 5, 6], 6).is_same(answer.token_ids)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_cancelled_request_gives_its_blocks_back_at_once(steps: int) -> None:
    """Cancelled while queued, or half way through its prompt, a request holds nothing."""
    bench = Bench(max_step_tokens=8)
    bench.submit("r", prompt_ids(80, seed=1), 4)
    for _ in range(steps):
        bench.step()
    bench.engine.cancel(RequestId("r"))
    assert bench.n_held == 0
    bench.drain()
    assert isinstance(bench.answers["r"].ending, Failed)
    assert bench.answers["r"].ending.kind is FailureKind.CANCELLED
    assert bench.run(prompt_ids(80, seed=1), 4).finished.usage.cached_tokens >= 8 * max(
        0, steps - 1
    )


def test_cancelling_unknown_or_finished_requests_does_nothing() -> None:
    """A late cancel is a no-op, and the id may be used again."""
    bench = Bench()
    bench.submit("r", prompt_ids(5), 2)
    bench.drain()
    bench.engine.cancel(RequestId("r"))
    bench.engine.cancel(RequestId("never seen"))
    assert not bench.engine.has_work
    bench.engine.cache.check()
    assert bench.n_held == 0


def test_no_token_follows_a_cancel_during_the_forward() -> None:
    """A cancel that comes while the last chunk is computed wins over its token."""
    bench = Bench()
    bench.submit("r", prompt_ids(9), 4)
    bench.submit("other", prompt_ids(9, seed=3), 4)
    events = bench.engine.step(poll=lambda: bench.engine.cancel(RequestId("r")))
    mine = [event for event in events if event.request_id == "r"]
    assert not any(isinstance(event, Delta) for event in mine)
    assert isinstance(mine[-1], Failed)
    assert mine[-1].usage is not None
    assert mine[-1].usage.output_tokens == 0
    bench.drain()
    expected = oracle(bench.reference, prompt_ids(9, seed=3), 4)
    deltas = [event for event in events if isinstance(event, Delta)]
    tokens = [t for event in deltas for t in event.token_ids] + bench.answers["other"].token_ids
    assert expected.is_same(tokens)
    assert bench.n_held == 0


@pytest.mark.parametrize("n_steps", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_submits_and_cancels_leave_nothing_held(n_steps: int) -> None:
    """Whatever comes and goes, the engine never stalls and ends with nothing held."""
    rng = random.Random(5)
    bench = Bench(n_blocks=24, max_step_tokens=16, max_running_requests=4)
    prefix = prompt_ids(12, seed=9)
    idle_steps = 0
    for number in range(n_steps):
        if rng.random() < 0.5:
            tail = prompt_ids(rng.randint(1, 30), seed=number)
            bench.submit(f"r{number}", prefix[: rng.randint(0, 12)] + tail, rng.randint(1, 20))
        if rng.random() < 0.2 and bench.answers:
            bench.engine.cancel(RequestId(rng.choice(list(bench.answers))))
        bench.step()
        stats = bench.engine.stats()
        idle_steps = idle_steps + 1 if stats.waiting and not stats.running else 0
        assert idle_steps <= 1  # those that ended in a step make room in the next
    bench.drain()
    assert bench.n_held == 0
    assert all(answer.ending is not None for answer in bench.answers.values())


def test_prompt_over_the_limit_is_refused_and_the_next_one_served() -> None:
    """A prompt that can never fit fails at once, by its limit, and blocks nobody."""
    bench = Bench(n_blocks=16)
    bench.submit("big", prompt_ids(300), 4)
    bench.submit("small", prompt_ids(10), 4)
    bench.drain(max_steps=20)
    refusal = bench.answers["big"].ending
    assert isinstance(refusal, Failed)
    assert refusal.kind is FailureKind.TOO_LARGE
    assert "63" in refusal.message
    assert bench.answers["small"].finished.usage.output_tokens == 4


def test_output_ends_where_the_model_or_the_pool_ends() -> None:
    """max_tokens beyond what fits is cut there, with reason length."""
    bench = Bench(n_blocks=16)
    answer = bench.run(prompt_ids(10), 2**31)
    assert answer.finished.reason is FinishReason.LENGTH
    assert answer.finished.usage.output_tokens == 16 * BLOCK - 10


def test_full_queue_refuses_the_next_request() -> None:
    """More than max_waiting_requests is answered `overloaded`, and the queued ones complete."""
    bench = Bench(max_waiting_requests=3)
    for number in range(5):
        bench.submit(f"r{number}", prompt_ids(5), 1)
    bench.drain()
    kinds = [type(bench.answers[f"r{number}"].ending).__name__ for number in range(5)]
    assert kinds == ["Finished"] * 3 + ["Failed"] * 2
    last = bench.answers["r4"].ending
    assert isinstance(last, Failed)
    assert last.kind is FailureKind.OVERLOADED


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ([], {}),
        ([320], {}),
        ([1, 2**32 - 1], {}),
        ([1], {"top_p": 0.0}),
        ([1], {"top_p": 1.5}),
        ([1], {"temperature": -1.0}),
        ([1], {"temperature": float("nan")}),
        ([1], {"top_k": 0}),
        ([1], {"stop_token_ids": (320,)}),
        ([1], {"stop_token_ids": (-1,)}),
        ([1], {"stop": ("x",)}),
        ([1], {"n_tokens": -1}),
    ],
)
def test_bad_requests_fail_alone(prompt: list[int], options: dict[str, Any]) -> None:
    """A request with impossible values is refused; its neighbour answers as alone."""
    bench = Bench()
    bench.submit("bad", prompt, **options)
    bench.submit("good", prompt_ids(9), 4)
    bench.drain()
    refusal = bench.answers["bad"].ending
    assert isinstance(refusal, Failed)
    assert refusal.kind is FailureKind.INVALID
    expected = oracle(bench.reference, prompt_ids(9), 4)
    assert expected.is_same(bench.answers["good"].token_ids)


def test_request_id_in_use_is_refused() -> None:
    """Two requests in flight never share an id."""
    bench = Bench()
    bench.submit("r", prompt_ids(5))
    with pytest.raises(EngineError, match="in use"):
        bench.submit("r", prompt_ids(6))


def fault_on(bench: Bench, token: int, fault: Callable[[Tensor], Tensor]) -> None:
    """Make the model fail whenever `token` is fed: `fault` gets the logits, or raises."""
    forward = bench.model.forward

    def faulty(step: Step) -> Tensor:
        logits = forward(step)
        return fault(logits) if (step.token_ids == token).any() else logits

    bench.model.forward = faulty  # type: ignore[method-assign]


def raise_error(_logits: Tensor) -> Tensor:
    raise RuntimeError("planted")


def spoil_last_row(logits: Tensor) -> Tensor:
    spoiled = logits.clone()
    spoiled[-1] = torch.nan
    return spoiled


@pytest.mark.parametrize("fault", [raise_error, spoil_last_row])
def test_failing_request_fails_alone(fault: Callable[[Tensor], Tensor]) -> None:
    """A request that the model cannot compute ends with an error; the others go on."""
    bench = Bench()
    poison = 319
    prompt = [token % 300 for token in prompt_ids(9)]
    bench.submit("good", prompt, 3)
    bench.step()
    bench.submit("bad", [*prompt, poison], 3)
    fault_on(bench, poison, fault)
    bench.drain()
    refusal = bench.answers["bad"].ending
    assert isinstance(refusal, Failed)
    assert refusal.kind is FailureKind.INTERNAL
    assert oracle(bench.reference, prompt, 3).is_same(bench.answers["good"].token_ids)
    assert bench.n_held == 0


def test_cache_can_be_switched_off_as_a_whole() -> None:
    """With prefix_cache off nothing is found and nothing is kept."""
    bench = Bench(prefix_cache=False)
    prompt = prompt_ids(21)
    bench.run(prompt, 4)
    assert bench.engine.stats().pool.cached == 0
    answer = bench.run(prompt, 4)
    assert answer.cached_tokens == 0
    assert oracle(bench.reference, prompt, 4).is_same(answer.token_ids)


def test_cache_can_be_switched_off_per_request() -> None:
    """A request may refuse to read the cache, and may refuse to be kept."""
    bench = Bench()
    prompt = prompt_ids(21)
    bench.run(prompt, 4, store_cache=False)
    assert bench.engine.stats().pool.cached == 0
    bench.run(prompt, 4)
    assert bench.run(prompt, 4, read_cache=False).cached_tokens == 0
    assert bench.run(prompt, 4).cached_tokens == 20


def test_tenants_share_nothing() -> None:
    """The same prompt of another tenant is a miss."""
    bench = Bench()
    prompt = prompt_ids(21)
    bench.run(prompt, 2, tenant="a")
    assert bench.run(prompt, 2, tenant="b").cached_tokens == 0
    assert bench.run(prompt, 2, tenant="a").cached_tokens == 20


def test_seeded_sampling_repeats_and_preemption_changes_nothing() -> None:
    """The same seed gives the same tokens, also when the request was preempted between."""
    calm = Bench()
    options: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "seed": 11}
    expected = calm.run(prompt_ids(20, seed=2), 24, **options).token_ids
    assert calm.run(prompt_ids(20, seed=2), 24, **options).token_ids == expected
    assert calm.run(prompt_ids(20, seed=2), 24, **options | {"seed": 12}).token_ids != expected
    crowded = Bench(n_blocks=16)
    crowded.submit("first", prompt_ids(20, seed=1), 24)
    crowded.submit("second", prompt_ids(20, seed=2), 24, **options)
    crowded.drain()
    assert crowded.engine.stats().preemptions_total > 0
    assert crowded.answers["second"].token_ids == expected


def test_stop_token_ends_the_answer_and_is_not_part_of_it() -> None:
    """A stop token gives reason stop, also as the last token allowed."""
    bench = Bench()
    prompt = prompt_ids(9)
    tokens = oracle(bench.reference, prompt, 5).token_ids
    n = tokens.index(tokens[4]) + 1
    for max_tokens in (n, n + 3):
        answer = bench.run(prompt, max_tokens, stop_token_ids=(tokens[4],))
        assert answer.finished.reason is FinishReason.STOP
        assert answer.token_ids == tokens[: n - 1]
        assert answer.finished.usage.output_tokens == n


@pytest.mark.parametrize(
    "setting", ["block_size_tokens", "max_step_tokens", "max_running_requests"]
)
def test_settings_that_cannot_work_stop_the_start(setting: str) -> None:
    """A zero where something is needed is refused by name when the engine is made."""
    settings: dict[str, Any] = {setting: 0}
    with pytest.raises(ConfigError, match=setting):
        EngineConfig(**settings)


@pytest.mark.parametrize("n_bytes", [0, 100])
def test_pool_too_small_for_anything_stops_the_start(n_bytes: int) -> None:
    """KV memory for less than a few blocks is refused with what it would hold."""
    with pytest.raises(ConfigError, match="kv_memory"):
        Bench(kv_memory_bytes=n_bytes)


def test_block_larger_than_chunks_and_prompts_works() -> None:
    """Chunks smaller than a block, and prompts smaller than one, change no answer."""
    bench = Bench(block_size_tokens=64, max_step_tokens=5)
    prompt = prompt_ids(70)
    for _ in range(2):
        assert oracle(bench.reference, prompt, 4).is_same(bench.run(prompt, 4).token_ids)
    assert oracle(bench.reference, prompt[:3], 4).is_same(bench.run(prompt[:3], 4).token_ids)


def test_a_request_that_waits_is_counted_when_it_is_admitted() -> None:
    """Its prompt and its hit stand in the counters once, however often it was looked at before."""
    bench = Bench(n_blocks=40, max_running_requests=1)
    warm = prompt_ids(24, seed=1)
    bench.run(warm, 1)
    bench.submit("first", prompt_ids(8, seed=2), 40)
    bench.step()
    bench.submit("waits", [*warm, 5], 1)
    before = bench.engine.stats()
    for _ in range(30):
        bench.step()
    waiting = bench.engine.stats()
    assert bench.answers["waits"].cached_tokens is None
    assert waiting.prompt_tokens_total == before.prompt_tokens_total
    assert waiting.cached_tokens_total == before.cached_tokens_total
    assert waiting.misses == before.misses
    bench.drain()
    after = bench.engine.stats()
    assert after.prompt_tokens_total - before.prompt_tokens_total == 25
    assert after.cached_tokens_total - before.cached_tokens_total == 24
