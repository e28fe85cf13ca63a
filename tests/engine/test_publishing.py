"""Published prompts: read through the scheduler for the system, shared, lost and read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefixcache.control import Invalidation, InvalidationKind, Publication, TenantQuota
from prefixcache.engine.publications import Reading
from prefixcache.errors import ConfigError, PrefixCacheError, PublicationError
from prefixcache.index import SYSTEM_TENANT, pack
from prefixcache.types import Finished, RequestId, Started
from tests.engine.test_reloading import Server
from tests.support.adapters import write_adapter
from tests.support.models import Bench, oracle, prompt_ids

PROMPT = prompt_ids(21, seed=1)  # five blocks of four, and one token
EVERYTHING = Invalidation(kind=InvalidationKind.EVERYTHING)


def publication(prompt_id: str, tokens: list[int], **options: Any) -> Publication:
    return Publication(
        prompt_id=prompt_id, name=prompt_id, version=1, token_ids=pack(tokens), **options
    )


def test_a_published_prompt_is_matched_by_everybody_to_its_last_token() -> None:
    """It is read once; tenants that never sent it find all of it, and answer as without."""
    bench = Bench()
    state = bench.publish("p", PROMPT).state
    assert state is not None
    assert (state.n_tokens, state.cached_tokens) == (21, 20)
    assert bench.engine.stats().computed_tokens_total == 21
    for tenant in ("one", "two"):
        prompt = [*PROMPT, *prompt_ids(5, seed=len(tenant))]
        answer = bench.run(prompt, 6, tenant=tenant)
        assert answer.cached_tokens == 21
        assert oracle(bench.reference, prompt, 6).is_same(answer.token_ids)
    stats = bench.engine.stats()
    assert (stats.prompt_tokens_total, stats.cached_tokens_total) == (52, 42)  # requests' alone


def test_running_requests_go_on_while_a_prompt_is_read() -> None:
    """A long prompt shares the steps with an answer, which gets a token in each."""
    bench = Bench(max_step_tokens=8)
    bench.submit("r", prompt_ids(5, seed=9), 30)
    bench.step()
    bench.engine.control.publish(publication("p", prompt_ids(40, seed=2)))
    n_steps = 0
    while not bench.engine.control.readings():
        before = len(bench.answers["r"].token_ids)
        bench.step()
        n_steps += 1
        assert len(bench.answers["r"].token_ids) == before + 1
    assert n_steps > 4


def test_no_events_tell_of_a_reading() -> None:
    """Nobody is sent Started or Finished for what the system reads."""
    bench = Bench()
    bench.engine.control.publish(publication("p", PROMPT))
    events = [event for _ in range(5) for event in bench.engine.step()]
    assert events == []
    assert not bench.engine.has_work
    assert [reading.prompt_id for reading in bench.engine.control.readings()] == ["p"]


def test_requests_that_begin_with_a_prompt_that_is_being_read_wait_for_it() -> None:
    """The prompt is computed once, by the system, though requests came before its first step."""
    bench = Bench(max_step_tokens=8)
    bench.engine.control.publish(publication("p", PROMPT))
    for tenant in ("one", "two"):
        bench.submit(tenant, [*PROMPT, *tenant.encode()], 2, tenant=tenant)
    bench.drain()
    assert [bench.answers[name].cached_tokens for name in ("one", "two")] == [21, 21]
    assert bench.engine.stats().computed_tokens_total == 21 + 2 * (3 + 1)


def test_only_chosen_tenants_share_a_prompt() -> None:
    """For others it is not there."""
    bench = Bench()
    bench.publish("p", PROMPT, tenants=("one",))
    assert bench.run([*PROMPT, 1, 2], 1, tenant="one").cached_tokens == 21
    assert bench.run([*PROMPT, 1, 2], 1, tenant="two").cached_tokens == 0


@pytest.mark.parametrize(
    ("tokens", "options", "said"),
    [
        (PROMPT[:3], {}, "at least a block of 4"),
        ([10**6] * 8, {}, "token id 1000000"),
        (prompt_ids(2048), {}, "at most"),
        (PROMPT, {"adapter": "none"}, "no adapter 'none'"),
    ],
)
def test_what_cannot_be_published_is_refused_at_once(
    tokens: list[int], options: dict[str, Any], said: str
) -> None:
    """The reason is told, and nothing is left of it."""
    bench = Bench(kv_memory_bytes=8 << 20)
    with pytest.raises(PrefixCacheError, match=said):
        bench.engine.control.publish(publication("p", tokens, **options))
    assert not bench.engine.has_work
    assert bench.engine.control.inspect().publications == []
    bench.publish("p", PROMPT)
    with pytest.raises(PublicationError, match="in use"):
        bench.engine.control.publish(publication("p", PROMPT))


def test_nothing_is_published_where_nothing_is_cached() -> None:
    """With the prefix cache off there would be nothing to share."""
    with pytest.raises(PublicationError, match="prefix_cache"):
        Bench(prefix_cache=False).engine.control.publish(publication("p", PROMPT))


def test_pinned_prompts_are_refused_when_they_could_not_all_be_cached() -> None:
    """The published prompts' quota, a quarter of the pool, counts what they share once."""
    bench = Bench(n_blocks=40)
    bench.publish("a", PROMPT)  # six blocks
    bench.publish("b", [*PROMPT[:20], 5, 6, 7, 8])  # one more
    bench.publish("same", PROMPT)
    with pytest.raises(PublicationError, match=r"takes 13 KV blocks; published prompts have 10"):
        bench.engine.control.publish(publication("c", prompt_ids(24, seed=3)))
    with pytest.raises(PublicationError, match="takes 11 KV blocks"):
        bench.engine.control.publish(publication("c", prompt_ids(44, seed=3), pin=False))
    assert [bench.cached_of(name) for name in ("a", "b", "same")] == [20, 24, 20]
    bench.engine.control.retire("a")
    bench.engine.control.retire("same")
    assert bench.publish("c", prompt_ids(16, seed=3)).state is not None
    bench.engine.control.set_quotas({SYSTEM_TENANT: TenantQuota(reserved_tokens=80)})
    assert bench.publish("d", prompt_ids(40, seed=4)).state is not None


def test_a_reading_that_finds_no_room_in_time_is_refused() -> None:
    """A pool full of running requests refuses a prompt after max_queue_seconds, as a request."""
    now = [0.0]
    bench = Bench(n_blocks=24, max_queue_seconds=5, clock=lambda: now[0])
    bench.submit("r", prompt_ids(80, seed=5), 10)
    bench.step()
    bench.engine.control.publish(publication("p", PROMPT))
    bench.step()
    now[0] = 6.0
    bench.step()
    (reading,) = bench.engine.control.readings()
    assert reading.state is None
    assert "5 seconds" in reading.refusal
    assert bench.engine.control.inspect().publications == []
    bench.drain()
    assert bench.answers["r"].finished


def test_a_retired_prompt_matches_nothing_at_once() -> None:
    """Also in the middle of its reading, which whoever waits for it is told; twice is harmless."""
    bench = Bench(max_step_tokens=4)
    bench.publish("p", PROMPT)
    bench.engine.control.retire("p")
    bench.engine.control.retire("p")
    assert bench.run([*PROMPT, 1, 2], 1).cached_tokens == 0
    bench.engine.control.publish(publication("q", prompt_ids(21, seed=7)))
    bench.step()
    assert bench.engine.stats().running == 1
    bench.engine.control.retire("q")
    assert bench.engine.control.readings() == [
        Reading("q", None, "it was retired before it was read")
    ]
    bench.drain()
    assert bench.engine.stats().computed_tokens_total == 21 + 23 + 4
    assert bench.n_held == 0


@pytest.mark.parametrize("kind", [InvalidationKind.EVERYTHING, InvalidationKind.MODEL])
def test_published_prompts_are_read_again_after_an_invalidation(kind: InvalidationKind) -> None:
    """At once nothing is matched; the prompts are read again by themselves."""
    bench = Bench()
    bench.publish("p", PROMPT)
    bench.publish("q", prompt_ids(8, seed=2), pin=False)
    bench.run([*PROMPT, 1, 2, 3, 4], 1)
    bench.engine.control.invalidate(Invalidation(kind=kind))
    assert [bench.cached_of(name) for name in "pq"] == [0, 0]
    assert bench.matchable([*PROMPT, 1, 2, 3, 4, 5]) == 0
    bench.drain()
    assert [bench.cached_of(name) for name in "pq"] == [20, 8]
    assert bench.matchable([*PROMPT, 1, 2, 3, 4, 5]) == 21


def test_a_reading_that_is_invalidated_begins_anew() -> None:
    """Who waits for it is answered once, when what was read can be matched."""
    bench = Bench(max_step_tokens=4)
    bench.engine.control.publish(publication("p", PROMPT))
    bench.step()
    bench.engine.control.invalidate(EVERYTHING)
    readings = []
    while bench.engine.has_work:
        bench.step()
        readings += bench.engine.control.readings()
    assert [reading.state is not None for reading in readings] == [True]
    assert bench.cached_of("p") == 20


def test_a_tenants_invalidation_leaves_prompts_alone() -> None:
    """What the tenant stored behind one is gone, the prompt is not."""
    bench = Bench()
    bench.publish("p", PROMPT)
    bench.run([*PROMPT, 1, 2, 3, 4, 5], 1, tenant="one")
    bench.run([*PROMPT, 1, 2, 3, 4, 5], 1, tenant="two")
    bench.engine.control.invalidate(Invalidation(kind=InvalidationKind.TENANT, name="one"))
    assert bench.run([*PROMPT, 1, 2, 3, 4, 5, 6], 1, tenant="one").cached_tokens == 21
    assert bench.run([*PROMPT, 1, 2, 3, 4, 5, 6], 1, tenant="two").cached_tokens == 24


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (InvalidationKind.TENANT, None),
        (InvalidationKind.TENANT, SYSTEM_TENANT),
        (InvalidationKind.ADAPTER, None),
        (InvalidationKind.ADAPTER, "none"),
    ],
)
def test_invalidations_of_nothing_are_refused(kind: InvalidationKind, name: str | None) -> None:
    """A name that is missing, the system's own, or no adapter's; nothing changes."""
    bench = Bench()
    bench.run(PROMPT, 1)
    with pytest.raises(PrefixCacheError):
        bench.engine.control.invalidate(Invalidation(kind=kind, name=name))
    assert bench.matchable(PROMPT) == 20


def test_a_pinned_prompt_outlasts_pressure_and_others_give_way() -> None:
    """A request that needs nearly all of the pool takes what is not pinned first."""
    bench = Bench(n_blocks=40)
    bench.publish("loose", prompt_ids(16, seed=2), pin=False)
    bench.publish("pinned", prompt_ids(16, seed=1))
    bench.run(prompt_ids(139, seed=3), 4)
    assert bench.cached_of("pinned") == 16
    assert bench.cached_of("loose") == 0


def test_a_pinned_prompt_that_gave_way_is_read_again_when_nothing_else_is_done() -> None:
    """A request that needs the whole pool takes it; when that has ended the prompt is back."""
    bench = Bench(n_blocks=40)
    bench.publish("p", PROMPT)
    bench.submit("r", prompt_ids(150, seed=3), 9)
    bench.step_until(lambda: bench.cached_of("p") == 0)
    bench.step_until(lambda: bench.answers["r"].ending)
    assert bench.engine.has_work
    bench.drain()
    assert bench.cached_of("p") == 20


def test_a_prompt_that_gave_way_is_read_for_the_system_when_it_is_needed() -> None:
    """The request waits for that, so what it finds is the same as with the prompt in place."""
    bench = Bench(n_blocks=40)
    bench.publish("loose", prompt_ids(16, seed=2), pin=False)
    bench.run(prompt_ids(156, seed=3), 4)
    assert bench.cached_of("loose") == 0
    for tenant in ("one", "two"):
        answer = bench.run([*prompt_ids(16, seed=2), 1, 2, 3], 2, tenant=tenant)
        assert answer.cached_tokens == 16
    assert bench.cached_of("loose") == 16


def test_prompts_for_an_adapter_follow_its_loads(tmp_path: Path) -> None:
    """Loaded anew it is read anew; unloaded it waits; back again it is there, all by itself."""
    bench = Bench()
    folder = str(write_adapter(tmp_path / "adapter", bench.reference))
    bench.engine.load_adapter("a", folder)
    bench.publish("p", PROMPT, adapter="a")
    assert bench.run([*PROMPT, 1], 1, adapter="a").cached_tokens == 21
    assert bench.run([*PROMPT, 1], 1).cached_tokens == 0
    bench.engine.load_adapter("a", folder)
    bench.drain()
    assert bench.run([*PROMPT, 1], 1, adapter="a").cached_tokens == 21
    bench.engine.control.invalidate(Invalidation(kind=InvalidationKind.ADAPTER, name="a"))
    assert bench.cached_of("p") == 0
    bench.drain()
    assert bench.cached_of("p") == 20
    bench.engine.unload_adapter("a")
    bench.drain()
    assert bench.cached_of("p") == 0
    bench.engine.load_adapter("a", folder)
    bench.drain()
    assert bench.run([*PROMPT, 1], 1, adapter="a").cached_tokens == 21


def test_a_prompt_that_stood_before_waits_for_its_adapter(tmp_path: Path) -> None:
    """An engine that takes over from one that is gone refuses it neither for that nor for room."""
    bench = Bench(n_blocks=40)
    control = bench.engine.control
    control.publish(publication("p", PROMPT, adapter="a"), stands=True)
    control.publish(publication("large", prompt_ids(60)), stands=True)
    assert {reading.prompt_id for reading in control.readings() if reading.state} == {"p", "large"}
    bench.drain()
    assert bench.cached_of("p") == 0
    bench.engine.load_adapter("a", str(write_adapter(tmp_path / "adapter", bench.reference)))
    bench.drain()
    assert bench.cached_of("p") == 20
    control.set_quotas({SYSTEM_TENANT: TenantQuota(max_tokens=100)})
    answer = bench.run([*prompt_ids(60), 1], 1)
    assert answer.cached_tokens == 60


@pytest.mark.parametrize("drains", [True, False])
def test_prompts_are_read_again_with_reloaded_weights(tmp_path: Path, drains: bool) -> None:
    """Nothing of the old weights is matched, and a reading that was under way is answered."""
    server = Server(tmp_path / "model", max_step_tokens=8)
    control = server.engine.control
    control.publish(publication("p", PROMPT))
    server.drain()
    assert [reading.prompt_id for reading in control.readings()] == ["p"]
    server.submit("running", prompt_ids(9, seed=8), 12)
    control.publish(publication("q", prompt_ids(24, seed=4)))
    server.step()
    server.reload(drains=drains)
    readings = []
    while server.engine.has_work:
        server.step()
        readings += control.readings()
    assert [(reading.prompt_id, reading.state is not None) for reading in readings] == [("q", True)]
    states = control.inspect().publications
    assert [state.cached_tokens for state in states] == [20, 24]
    new = server.run("new", [*PROMPT, 1, 2], 6)
    assert server.cached("new") == 21
    assert oracle(server.new, [*PROMPT, 1, 2], 6).is_same(new)


def test_windows_that_let_go_share_prompts_too() -> None:
    """Where layers keep a window alone, a prompt is found with what its next token sees."""
    bench = Bench("qwen2-mixed")
    prompt = prompt_ids(40, seed=6)
    bench.publish("p", prompt)
    assert bench.run([*prompt, 1, 2], 4, tenant="one").cached_tokens == 40


def test_a_preempted_reading_goes_on() -> None:
    """When an older answer needs its room it gives way, and is there in the end."""
    bench = Bench(n_blocks=16, growth_blocks=0, max_step_tokens=4)
    bench.engine.control.set_quotas({SYSTEM_TENANT: TenantQuota(max_tokens=64)})
    bench.submit("r", prompt_ids(8, seed=9), 44)
    bench.step()
    bench.step()
    bench.engine.control.publish(publication("p", prompt_ids(48, seed=2)))
    bench.step_until(lambda: bench.engine.stats().preemptions_total)
    bench.drain()
    assert bench.answers["r"].finished
    assert bench.cached_of("p") == 48


def test_isolation_in_counts_steps_and_tokens() -> None:
    """Whether another tenant sent the same text before changes nothing that a tenant can count."""
    secret = prompt_ids(30, seed=11)

    def probe(sent_by_other: bool) -> tuple[int | None, int, int, Finished]:
        bench = Bench(max_step_tokens=8)
        bench.publish("p", PROMPT)
        for prompt in (secret, [*PROMPT, *secret]):
            if sent_by_other:
                bench.run(prompt, 4, tenant="a")
        before = bench.engine.stats()
        answer = bench.run([*PROMPT, *secret], 4, tenant="b")
        other = bench.run(secret, 4, tenant="b")
        after = bench.engine.stats()
        assert other.cached_tokens == 0
        return (
            answer.cached_tokens,
            after.computed_tokens_total - before.computed_tokens_total,
            after.steps_total - before.steps_total,
            answer.finished,
        )

    alone, beside = probe(sent_by_other=False), probe(sent_by_other=True)
    assert alone[:3] == beside[:3]
    assert alone[3].usage == beside[3].usage
    assert alone[0] == 21  # the published prompt and no more
    bench = Bench()
    bench.publish("p", PROMPT)
    for _ in range(2):
        again = bench.run([*PROMPT, *secret], 4, tenant="a")
    assert again.cached_tokens == 50  # all of its own but the last


def test_started_events_of_requests_are_the_only_ones() -> None:
    """A request that waits for a reading starts when it is admitted, with what it finds."""
    bench = Bench(max_step_tokens=64)
    bench.engine.control.publish(publication("p", PROMPT))
    bench.submit("r", [*PROMPT, 1, 2], 2)
    events = [event for _ in range(3) for event in bench.step()]
    starts = [event for event in events if isinstance(event, Started)]
    assert [(start.request_id, start.cached_tokens) for start in starts] == [("r", 21)]


def test_shorter_than_a_block_is_a_config_error() -> None:
    """The index says how many tokens there must be."""
    with pytest.raises(ConfigError):
        Bench().engine.control.publish(publication("p", [1]))


def test_a_prompt_that_is_lost_is_read_again_after_a_cancel_too() -> None:
    """The last request need not end in a step that computes something."""
    bench = Bench(n_blocks=40)
    bench.publish("p", PROMPT)
    bench.submit("r", prompt_ids(150, seed=3), 9)
    bench.step_until(lambda: bench.cached_of("p") == 0)
    bench.engine.cancel(RequestId("r"))
    bench.step()
    bench.drain()
    assert bench.cached_of("p") == 20


def test_a_second_reading_that_finds_no_room_in_time_is_tried_again() -> None:
    """What nobody waits for is not given up for a busy hour: the next idle moment reads it."""
    now = [0.0]
    bench = Bench(n_blocks=40, max_queue_seconds=5, clock=lambda: now[0])
    bench.publish("p", PROMPT)
    bench.submit("r", prompt_ids(150, seed=3), 9)
    bench.step_until(lambda: bench.cached_of("p") == 0)
    bench.engine.control.invalidate(EVERYTHING)
    bench.step()
    assert bench.engine.stats().waiting == 1
    now[0] = 6.0
    bench.step()
    assert bench.engine.stats().waiting == 0
    bench.drain()
    assert bench.cached_of("p") == 20


@pytest.mark.parametrize("change", ["retire", "invalidate", "unload"])
def test_a_prompt_can_change_in_the_step_in_which_its_reading_fails(
    tmp_path: Path, change: str
) -> None:
    """What an operator asks for while a step runs finds a reading that has ended already."""
    bench = Bench(n_blocks=40)
    control = bench.engine.control
    bench.engine.load_adapter("a", str(write_adapter(tmp_path / "adapter", bench.reference)))
    bench.submit("running", prompt_ids(9), 8)
    bench.step()
    control.publish(publication("large", prompt_ids(60), adapter="a"), stands=True)
    changes: dict[str, Callable[[], Any]] = {
        "retire": lambda: control.retire("large"),
        "invalidate": lambda: control.invalidate(Invalidation(kind=InvalidationKind.EVERYTHING)),
        "unload": lambda: bench.engine.unload_adapter("a"),
    }
    bench.step(poll=changes[change])
    bench.drain()
    assert oracle(bench.reference, prompt_ids(9), 8).is_same(bench.answers["running"].token_ids)
    assert bench.n_held == 0


def test_a_prompt_can_be_retired_after_a_reload_that_ended_its_reading(tmp_path: Path) -> None:
    """A reload that does not wait fails a reading; it is not failed a second time."""
    server = Server(tmp_path / "model", max_step_tokens=8)
    server.engine.control.publish(publication("p", prompt_ids(60)))
    server.step()
    server.reload(drains=False)
    server.engine.control.retire("p")
    server.drain()
    (reading,) = server.engine.control.readings()
    assert reading.refusal
    assert not server.engine.stats().running
