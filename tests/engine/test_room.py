"""Who is admitted, in which order, and what room a request takes."""

from __future__ import annotations

from torch import Tensor

from prefixcache.engine.plan import Step
from prefixcache.types import (
    Failed,
    FailureKind,
    Finished,
    Started,
)
from tests.support.models import (
    Bench,
    prompt_ids,
)
from tests.support.storm import small_bench

BLOCK = 4  # the test benches' default


def test_short_answers_evict_no_more_than_they_can_use() -> None:
    """A request that may add six tokens takes no room for a long answer from the cache."""
    bench = small_bench(n_tokens=96, growth_blocks=8)
    bench.run(prompt_ids(95), 1)
    before = bench.engine.stats()
    bench.run(prompt_ids(8, seed=5), 6)
    needed = -(-13 // BLOCK) - before.pool.free
    assert bench.engine.stats().evicted_blocks_total - before.evicted_blocks_total == needed


def test_decoding_neighbours_never_stop_a_prompt() -> None:
    """A prompt goes on in each step, however many others are decoding beside it."""
    bench = Bench(max_step_tokens=8)
    for number in range(7):
        bench.submit(f"d{number}", prompt_ids(1, seed=number), 60)
    bench.step()
    bench.submit("late", prompt_ids(24, seed=99), 1)
    for _ in range(26):
        bench.step()
    assert bench.answers["late"].ending is not None


def test_requests_start_in_order_of_arrival() -> None:
    """Among those that wait, who came first is admitted first."""
    bench = Bench(max_running_requests=1)
    started = []
    for number in range(4):
        bench.submit(f"r{number}", prompt_ids(5, seed=number), 2)
    while bench.engine.has_work:
        started += [event.request_id for event in bench.step() if isinstance(event, Started)]
    assert started == ["r0", "r1", "r2", "r3"]


def test_preempted_request_goes_before_those_that_came_later() -> None:
    """Who gave way to an older request is the next to be admitted, and is started once."""
    bench = small_bench(n_tokens=64)
    for name, seed in (("old", 1), ("young", 2)):
        bench.submit(name, prompt_ids(20, seed=seed), 24)
    bench.step()
    bench.submit("late", prompt_ids(30, seed=3), 1)
    endings, started = [], []
    while bench.engine.has_work:
        for event in bench.step():
            if isinstance(event, Finished):
                endings.append(event.request_id)
            elif isinstance(event, Started):
                started.append(event.request_id)
    assert bench.engine.stats().preemptions_total > 0
    assert started == ["late"]  # the others were, before
    assert endings == ["old", "young", "late"]


def test_no_more_than_the_limit_run_side_by_side() -> None:
    """max_running_requests is kept in every step."""
    bench = Bench(max_running_requests=3)
    for number in range(8):
        bench.submit(f"r{number}", prompt_ids(5, seed=number), 6)
    most = 0
    while bench.engine.has_work:
        bench.step()
        most = max(most, bench.engine.stats().running)
    assert most <= 3
    assert all(isinstance(answer.ending, Finished) for answer in bench.answers.values())


def test_decodes_go_on_beside_a_long_prompt() -> None:
    """Who is answering gets a token in each step, however long another's prompt is."""
    bench = Bench(max_step_tokens=8)
    bench.submit("short", prompt_ids(4), 12)
    bench.step()
    bench.submit("long", prompt_ids(90, seed=2), 1)
    for n_tokens in range(2, 12):
        bench.step()
        assert len(bench.answers["short"].token_ids) == n_tokens
    assert bench.answers["long"].ending is None


def test_admission_keeps_a_block_for_the_answer() -> None:
    """Prompts that fill the pool to the last block are not admitted only to be preempted."""
    bench = small_bench(n_tokens=64)
    for name in ("a", "b"):
        bench.submit(name, prompt_ids(32, seed=ord(name)), 3)
    bench.drain()
    assert bench.engine.stats().preemptions_total == 0


def test_answer_of_one_token_needs_no_room_beyond_its_prompt() -> None:
    """The last token is never fed, so two prompts that fill the pool run at once."""
    bench = small_bench(n_tokens=64)
    for name in ("a", "b"):
        bench.submit(name, prompt_ids(32, seed=ord(name)), 1)
    events = bench.step()
    assert sum(isinstance(event, Finished) for event in events) == 2


def test_poll_is_called_between_the_forward_and_its_tokens() -> None:
    """What arrives while the model computes is known before its tokens are shown."""
    bench = Bench()
    order: list[str] = []
    forward = bench.model.forward

    def noted(step: Step) -> Tensor:
        order.append("forward")
        return forward(step)

    bench.model.forward = noted  # type: ignore[method-assign]
    bench.submit("r", prompt_ids(5), 1)
    bench.engine.step(poll=lambda: order.append("poll"))
    assert order == ["forward", "poll"]


def test_prompt_may_leave_room_for_one_token() -> None:
    """A prompt one short of the limit gets one token; one as long as the limit is refused."""
    bench = small_bench(n_tokens=64)
    bench.submit("long", prompt_ids(64), 4)
    assert bench.run(prompt_ids(63), 4).finished.usage.output_tokens == 1
    refusal = bench.answers["long"].ending
    assert isinstance(refusal, Failed)
    assert refusal.kind is FailureKind.TOO_LARGE


def test_the_narrowest_limit_is_the_longest_sequence() -> None:
    """Of the model's, the setting's and the pool's limit the least one counts."""
    assert small_bench(n_tokens=64).engine.info.max_model_tokens == 64
    assert Bench(kv_memory_bytes=1 << 23).engine.info.max_model_tokens == 512
    assert Bench(max_model_tokens=30).engine.info.max_model_tokens == 30
