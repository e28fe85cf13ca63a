"""What an operator asks of an engine beside publishing: quotas, retention, counts and looks."""

from __future__ import annotations

import pytest

from prefixcache.control import Invalidation, InvalidationKind, TenantQuota
from prefixcache.errors import ConfigError
from prefixcache.index import SYSTEM_TENANT
from prefixcache.types import RequestId, Retain
from tests.support.models import Bench, prompt_ids

PROMPT = prompt_ids(21, seed=1)


def test_a_quota_in_tokens_bounds_and_promises_blocks() -> None:
    """A maximum refuses what is longer; a reserve outlasts another's traffic; others are free."""
    bench = Bench(n_blocks=40)
    bench.engine.control.set_quotas(
        {"small": TenantQuota(max_tokens=30), "kept": TenantQuota(reserved_tokens=33)}
    )
    assert "28 tokens" in bench.run(prompt_ids(29), 1, tenant="small").failed.message
    assert bench.run(prompt_ids(27), 1, tenant="small").finished
    bench.run(prompt_ids(34, seed=2), 1, tenant="kept")
    for seed in range(5, 9):
        bench.run(prompt_ids(100, seed=seed), 1, tenant="other")
    assert bench.run(prompt_ids(34, seed=2), 1, tenant="kept").cached_tokens == 32
    bench.engine.control.set_quotas({})
    assert bench.run(prompt_ids(29), 1, tenant="small").finished
    shown = {each.tenant: each for each in bench.engine.control.inspect().tenants}
    assert (shown["kept"].reserved_tokens, shown["small"].max_tokens) == (0, 160)
    assert shown[SYSTEM_TENANT].max_tokens == 40


def test_quotas_that_promise_too_much_change_nothing() -> None:
    """The sum of all reserves is checked before any is set; those not named count no more."""
    bench = Bench(n_blocks=40)
    control = bench.engine.control
    control.set_quotas({"a": TenantQuota(reserved_tokens=120)})
    with pytest.raises(ConfigError, match="the pool has 40 blocks"):
        control.set_quotas(
            {"b": TenantQuota(reserved_tokens=80), "c": TenantQuota(reserved_tokens=81)}
        )
    reserved = {each.tenant: each.reserved_tokens for each in control.inspect().tenants}
    assert reserved == {SYSTEM_TENANT: 0, "a": 120}
    control.set_quotas({"b": TenantQuota(reserved_tokens=80), "c": TenantQuota(reserved_tokens=80)})


def test_a_tenant_of_weight_two_gets_twice_the_steps() -> None:
    """While two tenants compete for the only place, one is served twice as often."""
    bench = Bench(max_running_requests=1)
    bench.engine.control.set_quotas({"heavy": TenantQuota(weight=2)})
    for number in range(12):
        for tenant in ("light", "heavy"):
            name = f"{tenant}{number}"
            bench.submit(name, prompt_ids(9, seed=100 + number), 4, tenant=tenant, salt=name)
    order: list[str] = []
    while len(order) < 12:
        order += [event.request_id[:5] for event in bench.step() if hasattr(event, "reason")]
    assert order.count("heavy") == 8


def advances(bench: Bench, name: str) -> bool:
    """Step once; return whether an answer that is running got its next token."""
    before = len(bench.answers[name].token_ids)
    bench.step()
    return len(bench.answers[name].token_ids) > before or bench.answers[name].ending is not None


def test_a_tenant_at_its_maximum_holds_up_nobody_else() -> None:
    """Its next request waits for its own; others are admitted at once, however many come."""
    bench = Bench(max_overtakes=1)
    bench.engine.control.set_quotas({"small": TenantQuota(max_tokens=32)})
    bench.submit("running", prompt_ids(20, seed=1), 12, tenant="small")
    for number in range(20):
        bench.submit(f"waits{number}", prompt_ids(20, seed=30 + number), 4, tenant="small")
    bench.step()
    for number in range(5):
        bench.submit(f"other{number}", prompt_ids(6, seed=60 + number), 20, tenant="other")
        bench.step()
        assert bench.answers[f"other{number}"].cached_tokens is not None
        assert bench.answers["waits0"].cached_tokens is None
    bench.drain()
    assert all(answer.finished for answer in bench.answers.values())


def test_who_grows_at_its_maximum_takes_from_its_own() -> None:
    """Another tenant's request, though the youngest, gets a token in every step."""
    bench = Bench(growth_blocks=0)
    bench.engine.control.set_quotas({"small": TenantQuota(max_tokens=40)})
    for name in ("one", "two"):
        bench.submit(name, prompt_ids(8, seed=len(name) + ord(name[0])), 24, tenant="small")
    bench.step()
    bench.submit("other", prompt_ids(8, seed=5), 40, tenant="other")
    bench.step()
    while not bench.answers["other"].ending:
        assert advances(bench, "other")
    bench.drain()
    assert bench.engine.stats().preemptions_total
    assert all(len(bench.answers[name].token_ids) == 24 for name in ("one", "two"))


def test_who_is_within_a_reserve_gives_way_for_nobody_else() -> None:
    """What it would free stays promised to it, so it is not preempted in vain."""
    bench = Bench(n_blocks=20, growth_blocks=0)
    bench.engine.control.set_quotas({"kept": TenantQuota(reserved_tokens=40)})
    for seed in (1, 2):
        bench.submit(f"free{seed}", prompt_ids(8, seed=seed), 24, tenant="free")
    bench.step()
    bench.submit("kept", prompt_ids(8, seed=5), 30, tenant="kept")
    bench.step()
    while not bench.answers["kept"].ending:
        assert advances(bench, "kept")
    bench.drain()
    assert bench.engine.stats().preemptions_total
    assert all(len(bench.answers[f"free{seed}"].token_ids) == 24 for seed in (1, 2))


def test_retained_prefixes_outlast_traffic_until_their_time() -> None:
    """A prefix is kept for its seconds; a hit with the same retention keeps it for longer."""
    now = [0.0]
    bench = Bench(n_blocks=40, clock=lambda: now[0])
    kept = (Retain(16, 100.0),)

    def flood(seed: int) -> None:
        for number in range(4):
            bench.run(prompt_ids(100, seed=seed + number), 1)

    bench.run(PROMPT, 1, retain=kept)
    assert bench.engine.control.inspect(max_nodes=0).tenants[-1].retained_tokens == 16
    flood(20)
    assert bench.matchable(PROMPT) == 16
    now[0] = 90.0
    bench.run(PROMPT, 1, retain=kept)
    now[0] = 180.0
    flood(30)
    assert bench.matchable(PROMPT) == 16
    now[0] = 191.0
    assert bench.engine.control.inspect(max_nodes=0).tenants[-1].retained_tokens == 0
    flood(40)
    assert bench.matchable(PROMPT) == 0


def test_nothing_is_retained_of_what_is_not_stored() -> None:
    """A request that keeps nothing keeps nothing for longer; bad retentions are refused."""
    bench = Bench()
    bench.run(PROMPT, 1, retain=(Retain(16, 100.0),), store_cache=False)
    assert bench.engine.control.inspect().tenants[-1].retained_tokens == 0
    for wrong in (Retain(0, 1.0), Retain(4, 0.0), Retain(4, float("nan"))):
        assert "retain" in bench.run(PROMPT, 1, retain=(wrong,)).failed.message
    assert "16 are the most" in bench.run(PROMPT, 1, retain=(Retain(4, 1.0),) * 17).failed.message


def written(bench: Bench, *prompts: list[int], **options: object) -> list[tuple[int, int]]:
    """Return cached and written tokens of each prompt, sent one after the other."""
    usages = [bench.run(prompt, 2, **options).finished.usage for prompt in prompts]
    return [(usage.cached_tokens, usage.written_tokens) for usage in usages]


def test_written_tokens_are_what_others_find_because_of_a_request() -> None:
    """Whole blocks beyond what was cached: copied parts of a block are not written again."""
    longer = [*PROMPT, 1, 2, 3, 4, 5, 6]
    found = written(Bench(), PROMPT, PROMPT, longer, [*PROMPT[:18], 9, 9, 9, 9, 9, 9])
    assert found == [(0, 20), (20, 0), (20, 4), (18, 6)]


def test_nothing_is_written_where_nothing_is_kept() -> None:
    """Not with store_cache off, nor without a cache, nor once its namespace was invalidated."""
    assert written(Bench(), PROMPT, store_cache=False) == [(0, 0)]
    assert written(Bench(prefix_cache=False), PROMPT) == [(0, 0)]
    assert written(Bench(), PROMPT, PROMPT, read_cache=False) == [(0, 20), (0, 0)]  # it was there
    bench = Bench(max_step_tokens=8)
    bench.submit("r", PROMPT, 2)
    bench.step()
    bench.engine.control.invalidate(Invalidation(kind=InvalidationKind.TENANT, name="default"))
    bench.drain()
    assert bench.answers["r"].finished.usage.written_tokens == 0


def test_a_twin_writes_only_what_it_reads_itself() -> None:
    """Of two equal prompts one writes and the other finds it; sums are what was stored."""
    bench = Bench(max_step_tokens=8)
    for name in ("first", "second"):
        bench.submit(name, [*PROMPT, *name.encode()], 2)
    bench.drain()
    first, second = (bench.answers[name].finished.usage for name in ("first", "second"))
    assert (first.cached_tokens, first.written_tokens) == (0, 24)
    assert second.cached_tokens >= 20
    assert second.cached_tokens + second.written_tokens == 24


def test_written_tokens_are_told_of_requests_that_fail_too() -> None:
    """As far as the prompt was read; a preemption in between counts nothing twice."""
    bench = Bench(max_step_tokens=8)
    bench.submit("r", PROMPT, 2)
    bench.step()
    bench.engine.cancel(RequestId("r"))
    bench.step()
    usage = bench.answers["r"].failed.usage
    assert usage is not None
    assert usage.written_tokens == 8
    bench = Bench(n_blocks=14, growth_blocks=0)
    bench.submit("old", prompt_ids(8, seed=1), 44)
    bench.submit("young", prompt_ids(20, seed=2), 20)
    bench.drain()
    assert bench.engine.stats().preemptions_total
    usages = [bench.answers[name].finished.usage.written_tokens for name in ("old", "young")]
    assert usages == [8, 20]


def test_an_inspection_shows_trees_tenants_and_the_pool() -> None:
    """Shapes and counts, never a token; one tenant's part alone when asked."""
    bench = Bench()
    bench.publish("p", PROMPT)
    bench.run([*PROMPT, 1, 2, 3, 4, 5], 1, tenant="one")
    bench.run(PROMPT, 1, tenant="two", salt="s")
    bench.run(PROMPT[4:], 1, tenant="two", salt="s")
    seen = bench.engine.control.inspect()
    assert seen.is_complete
    assert {(tree.tenant, tree.has_salt, tree.published) for tree in seen.trees} >= {
        ("one", False, "p 1"),
        ("two", True, None),
        (SYSTEM_TENANT, False, None),
    }
    assert seen.pool == bench.engine.stats().pool
    assert (seen.block_size_tokens, seen.longest_free_run > 0) == (4, True)
    one = next(each for each in seen.tenants if each.tenant == "one")
    assert (one.requests_total, one.prompt_tokens_total, one.hit_tokens_total) == (1, 26, 21)
    assert one.cached_tokens == 4
    alone = bench.engine.control.inspect(tenant="two")
    assert {tree.tenant for tree in alone.trees} == {"two"}
    assert [each.tenant for each in alone.tenants] == ["two"]
    assert alone.tenants[0].misses == {"nothing_stored": 1}
    assert [each.prompt_id for each in alone.publications] == ["p"]
    nobody = bench.engine.control.inspect(tenant="nobody")
    assert (nobody.trees, nobody.tenants[0].tenant) == ([], "nobody")


def test_an_inspection_is_bounded_by_its_nodes() -> None:
    """It tells when there is more, and with no nodes at all it has the counters."""
    bench = Bench()
    for seed in range(9):
        bench.run(prompt_ids(9, seed=seed), 1)
    for max_nodes in (0, 1, 5):
        seen = bench.engine.control.inspect(max_nodes=max_nodes)
        assert not seen.is_complete
        assert sum(len(tree.nodes) for tree in seen.trees) < max(max_nodes, 1)
        assert {each.tenant for each in seen.tenants} == {SYSTEM_TENANT, "default"}
    assert bench.engine.control.inspect(max_nodes=10**9).is_complete
