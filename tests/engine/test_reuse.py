"""What the cache gives to later requests, to the token, and what it never gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from prefixcache.engine.parts import TailPart
from prefixcache.engine.plan import Chunk, Step, plan_step
from prefixcache.types import BlockId, FailureKind, FinishReason, RequestId, Span, Started
from tests.support.models import (
    ARCHITECTURES,
    LOGIT_TOLERANCE,
    Bench,
    oracle,
    prompt_ids,
)

BLOCK = 4
# Logits of cold and warm runs may differ by this share of the largest of them.
HALF_TOLERANCE = {torch.bfloat16: 0.05, torch.float16: 0.006}


@pytest.mark.parametrize("n_blocks", [1, 3, 8])
@pytest.mark.parametrize("exact", [True, False])
def test_a_prompt_of_whole_blocks_run_twice(exact: bool, n_blocks: int) -> None:
    """All but one token is reused, or all but one block where blocks are shared whole."""
    bench = Bench(token_exact_reuse=exact)
    prompt = prompt_ids(n_blocks * BLOCK, seed=4)
    expected = oracle(bench.reference, prompt, 9)
    first = bench.run(prompt, 9)
    second = bench.run(prompt, 9)
    assert first.cached_tokens == 0
    assert second.cached_tokens == (len(prompt) - 1 if exact else len(prompt) - BLOCK)
    assert second.token_ids == first.token_ids
    assert expected.is_same(second.token_ids)


@pytest.mark.parametrize(("exact", "hit"), [(True, 14), (False, 12)])
def test_a_block_left_midway_is_copied_only_where_that_is_on(exact: bool, hit: int) -> None:
    """The setting decides whether the shared tokens of a block are reused."""
    bench = Bench(token_exact_reuse=exact)
    bench.run(prompt_ids(20, seed=4), 1)
    other = [*prompt_ids(20, seed=4)[:14], *prompt_ids(5, seed=5)]
    assert bench.run(other, 1).cached_tokens == hit


def test_misses_are_counted_by_what_stood_in_the_way() -> None:
    """Once a request, at its first admission; a whole hit is no miss."""
    bench = Bench()
    prompt = prompt_ids(20, seed=4)
    bench.run(prompt, 1)
    bench.run([*prompt[:14], *prompt_ids(9, seed=5)], 1)
    bench.run(prompt, 1)
    bench.run(prompt, 1, read_cache=False)
    misses = bench.engine.stats().misses
    assert misses == {"nothing_stored": 1, "diverged": 1, "disabled": 1}


@pytest.mark.parametrize("n_steps", [1, 2, 5])
def test_a_request_cancelled_midway_leaves_what_it_computed(n_steps: int) -> None:
    """What was computed of its prompt is matchable after each step, and stays so."""
    chunk = 10
    bench = Bench(max_step_tokens=chunk)
    prompt = prompt_ids(80, seed=3)
    bench.submit("left", prompt, 4)
    for n in range(1, n_steps + 1):
        bench.step()
        assert bench.matchable(prompt) == n * chunk // BLOCK * BLOCK
    bench.engine.cancel(RequestId("left"))
    assert bench.n_held == 0
    bench.drain()
    assert bench.answers["left"].failed.kind is FailureKind.CANCELLED
    answer = bench.run(prompt, 6)
    assert answer.cached_tokens == n_steps * chunk // BLOCK * BLOCK
    assert oracle(bench.reference, prompt, 6).is_same(answer.token_ids)


def test_nothing_is_matchable_before_its_forward_is_through() -> None:
    """While a chunk is computed, a look-up finds only the chunks before it."""
    bench = Bench(max_step_tokens=8)
    prompt = prompt_ids(40, seed=3)
    forward, found = bench.model.forward, []

    def watched(step: Step) -> torch.Tensor:
        found.append(bench.matchable(prompt))
        return forward(step)

    bench.model.forward = watched  # type: ignore[method-assign]
    bench.run(prompt, 1)
    assert found == [0, 8, 16, 24, 32]


def test_a_chunk_that_failed_is_not_matchable() -> None:
    """A forward that raises has written nothing that anybody may read."""
    bench = Bench(max_step_tokens=8)
    prompt = prompt_ids(40, seed=3)
    forward = bench.model.forward

    def failing(step: Step) -> torch.Tensor:
        if step.positions[0, 0] == 16:
            raise RuntimeError("planted")
        return forward(step)

    bench.model.forward = failing  # type: ignore[method-assign]
    assert bench.run(prompt, 1).failed.kind is FailureKind.INTERNAL
    bench.model.forward = forward  # type: ignore[method-assign]
    answer = bench.run(prompt, 6)
    assert answer.cached_tokens == 16
    assert oracle(bench.reference, prompt, 6).is_same(answer.token_ids)


def test_a_prompt_without_finite_logits_keeps_its_last_chunk_out_of_the_tree() -> None:
    """Where no token could be chosen, the KV that led there is not given to anybody."""
    bench = Bench(max_step_tokens=8)
    prompt = prompt_ids(40, seed=3)
    forward = bench.model.forward
    bench.model.forward = lambda step: forward(step) * torch.nan  # type: ignore[method-assign]
    assert bench.run(prompt, 4).failed.kind is FailureKind.INTERNAL
    assert bench.n_held == 0
    assert bench.matchable([*prompt, 1]) == 32
    bench.model.forward = forward  # type: ignore[method-assign]
    assert oracle(bench.reference, prompt, 6).is_same(bench.run(prompt, 6).token_ids)


def test_a_request_cancelled_after_the_third_of_ten_chunks() -> None:
    """Its blocks are back at once, its client is told, and the next request hits three chunks."""
    bench = Bench(max_step_tokens=8)
    prompt = prompt_ids(80, seed=3)
    bench.submit("left", prompt, 4)
    for _ in range(3):
        assert not bench.answers["left"].token_ids
        bench.step()
    bench.engine.cancel(RequestId("left"))
    assert bench.n_held == 0
    bench.step()
    usage = bench.answers["left"].failed.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.output_tokens) == (80, 0)
    assert not bench.engine.has_work
    assert bench.run(prompt, 1).cached_tokens == 24


def test_a_client_gone_during_the_fourth_of_ten_chunks() -> None:
    """Of the chunk that was on its way, all or nothing may stay; of those before it, all do."""
    bench = Bench(max_step_tokens=8)
    prompt = prompt_ids(80, seed=3)
    bench.submit("left", prompt, 4)
    for _ in range(3):
        bench.step()
    bench.step(poll=lambda: bench.engine.cancel(RequestId("left")))
    assert bench.n_held == 0
    assert bench.answers["left"].failed.kind is FailureKind.CANCELLED
    answer = bench.run(prompt, 6)
    assert answer.cached_tokens in {24, 32}
    assert oracle(bench.reference, prompt, 6).is_same(answer.token_ids)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("cuts", [(5,), (1, 4), (1, 1, 1, 1, 1)], ids=str)
def test_every_row_after_a_cached_prefix_has_the_cold_logits(
    architecture: str, cuts: tuple[int, ...]
) -> None:
    """Positions go on where the prefix ends, and each row sees prefix and suffix."""
    bench = Bench(architecture)
    prefix, suffix = prompt_ids(12, seed=8), prompt_ids(5, seed=9)
    cold = bench.loaded.model.plain_logits([*prefix, *suffix])[12:]
    spans = [Span(BlockId(9), 1), Span(BlockId(2), 2), Span(BlockId(30), 2)]
    tables = tuple(spans for _ in bench.loaded.store.layout.groups)

    def feed(token_ids: list[int], first: int) -> torch.Tensor:
        chunk = Chunk(token_ids, first, tables, n_logits=1)
        step = plan_step([chunk], bench.loaded.store, torch.device("cpu"))
        assert step.positions[0].tolist() == list(range(first, first + len(token_ids)))
        return bench.model.forward(replace(step, logit_rows=torch.arange(len(token_ids))))

    feed(prefix, 0)
    rows, done = [], 0
    for n in cuts:
        rows.append(feed(suffix[done : done + n], 12 + done))
        done += n
    torch.testing.assert_close(torch.cat(rows), cold, atol=LOGIT_TOLERANCE, rtol=LOGIT_TOLERANCE)


@pytest.mark.parametrize("architecture", ["llama", "qwen2-mixed"])
def test_a_table_in_many_pieces_is_written_and_read_by_position(architecture: str) -> None:
    """In a pool of holes a request's blocks lie anywhere; its answer is that of a fresh pool."""
    bench = Bench(architecture, n_blocks=40, growth_blocks=0, max_running_requests=40)
    for number in range(40):  # a block each; those between the ones that are kept go again
        bench.submit(f"r{number}", prompt_ids(3, seed=number), 2, store_cache=number % 2 == 1)
    bench.drain()
    assert bench.engine.cache.longest_free_run() == 1
    prompt = prompt_ids(26, seed=50)
    expected = oracle(bench.reference, prompt, 21)
    answer = bench.run(prompt, 21)
    n_pieces = []
    for step in bench.model.steps[-20:]:
        (part,) = step.groups[0].parts
        assert isinstance(part, TailPart)
        n_pieces.append(1 + int((part.slots.index.diff() != 1).sum()))
    assert n_pieces == [-(-n_tokens // BLOCK) for n_tokens in range(27, 47)]
    assert expected.is_same(answer.token_ids)
    found = torch.stack(bench.model.rows[-21:])
    torch.testing.assert_close(found, expected.logits, atol=LOGIT_TOLERANCE, rtol=LOGIT_TOLERANCE)


def test_float32_ids_agree_cold_warm_and_in_a_batch() -> None:
    """The same prompt has the same answer, id for id, in whatever company it is computed."""
    bench = Bench()
    prompt = prompt_ids(33, seed=12)
    expected = oracle(bench.reference, prompt, 12).token_ids
    answers = [bench.run(prompt, 12) for _ in range(2)]
    assert [answer.cached_tokens for answer in answers] == [0, 32]
    for is_read in (False, True):
        names = [f"{is_read}-{number}" for number in range(5)]
        for number, name in enumerate(names):
            company = prompt if number == 2 else prompt_ids(7 * number + 2, seed=60 + number)
            bench.submit(name, company, 12, read_cache=is_read)
        bench.drain()
        answers.append(bench.answers[names[2]])
    assert [answer.token_ids for answer in answers] == [expected] * 4


@pytest.mark.parametrize("dtype", HALF_TOLERANCE, ids=str)
def test_half_precision_logits_agree_within_the_tolerance(dtype: torch.dtype) -> None:
    """In 16 bits, cold, warm and batched logits differ by rounding, never by more."""
    bench = Bench(dtype=dtype)
    prompt = prompt_ids(33, seed=12)
    cold = last_row(bench, prompt, 0)
    limit = HALF_TOLERANCE[dtype] * cold.abs().max().item()
    for n_known in (33, 18, 5):
        bench.engine.cache.evict(10_000)
        bench.run(prompt[:n_known], 1)
        warm = last_row(bench, prompt, n_known // BLOCK * BLOCK)
        assert (warm - cold).abs().max().item() <= limit
    bench.engine.cache.evict(10_000)
    bench.model.rows.clear()
    for number in range(5):
        bench.submit(f"b{number}", prompt[: 33 - 7 * number], 1)
    bench.drain()
    assert (bench.model.rows[0] - cold).abs().max().item() <= limit
    other = last_row(bench, [*prompt[:-1], (prompt[-1] + 1) % 320], 32)
    assert (other - cold).abs().max().item() > 5 * limit  # the bound can tell


def last_row(bench: Bench, prompt: list[int], cached: int) -> torch.Tensor:
    """Run a prompt for one token and return the logits that it was chosen from."""
    assert bench.run(prompt, 1).cached_tokens == cached
    return bench.model.rows[-1]


def test_salts_share_with_themselves_alone() -> None:
    """No salt is the tenant's default; a salt is a namespace of its own within its tenant."""
    bench = Bench()
    prompt = prompt_ids(21)

    def cached(salt: str | None, tenant: str = "default") -> int | None:
        return bench.run(prompt, 1, salt=salt, tenant=tenant).cached_tokens

    assert (cached(None), cached(None)) == (0, 20)
    assert (cached("red"), cached("red")) == (0, 20)
    assert cached("blue") == 0
    assert cached("") == 0  # a salt of no characters is still no default
    assert (cached("red", "other"), cached(None, "other")) == (0, 0)
    assert (cached(None), cached("red"), cached("red", "other")) == (20, 20, 20)


def test_no_more_requests_run_than_are_allowed() -> None:
    """The others wait in order, each until one has ended."""
    bench = Bench(max_running_requests=2)
    for number in range(5):
        bench.submit(f"r{number}", prompt_ids(5, seed=number), 3 + number)
    most, order = 0, []
    for _ in range(40):
        order += [event.request_id for event in bench.step() if isinstance(event, Started)]
        most = max(most, bench.engine.stats().running)
    assert not bench.engine.has_work
    assert most == 2
    assert order == [f"r{number}" for number in range(5)]


def test_sequences_end_at_the_set_length() -> None:
    """max_model_tokens bounds prompt and output together, whatever the model could do."""
    bench = Bench(max_model_tokens=20)
    assert bench.engine.info.max_model_tokens == 20
    answer = bench.run(prompt_ids(12), 100)
    assert answer.finished.reason is FinishReason.LENGTH
    assert len(answer.token_ids) == 8
    assert len(bench.run(prompt_ids(19), 100).token_ids) == 1
    refusal = bench.run(prompt_ids(20), 1).failed
    assert refusal.kind is FailureKind.TOO_LARGE
    assert "19" in refusal.message
