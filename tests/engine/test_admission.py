"""Who is admitted before whom: priorities, tenants, and those who find no room."""

from __future__ import annotations

from prefixcache.engine.fairness import TenantShares
from prefixcache.types import Failed, FailureKind, RequestId, Started
from tests.support.models import Bench, oracle, prompt_ids

BLOCK = 4


def started(bench: Bench) -> list[str]:
    """Return who starts from now on, in order."""
    names: list[str] = []
    while bench.engine.has_work:
        names += starts_of_a_step(bench)
    return names


def starts_of_a_step(bench: Bench) -> list[str]:
    return [event.request_id for event in bench.step() if isinstance(event, Started)]


# Priorities


def test_the_lowest_priority_number_goes_first() -> None:
    """Whatever the order of arrival and of tenants; equals go as they came."""
    bench = Bench(max_running_requests=1)
    for number, (priority, tenant) in enumerate(
        [(0, "a"), (5, "a"), (-3, "b"), (0, "a"), (5, "c")]
    ):
        bench.submit(f"r{number}", prompt_ids(5, seed=number), 1, priority=priority, tenant=tenant)
    assert started(bench)[:3] == ["r2", "r0", "r3"]


def test_who_gives_way_is_the_youngest_of_the_lowest_priority() -> None:
    """An older request of a higher number is preempted before a younger one of a lower number."""
    bench = Bench(n_blocks=12, growth_blocks=0)
    bench.submit("old", prompt_ids(16, seed=1), 20, priority=1)
    bench.step()
    bench.submit("young", prompt_ids(16, seed=2), 20)
    bench.step_until(lambda: bench.engine.stats().preemptions_total)
    bench.step_until(lambda: bench.answers["young"].ending is not None)
    assert bench.answers["old"].ending is None
    bench.drain()
    for name, seed in (("old", 1), ("young", 2)):
        expected = oracle(bench.reference, prompt_ids(16, seed=seed), 20)
        assert expected.is_same(bench.answers[name].token_ids)


def test_what_is_read_for_an_urgent_twin_is_urgent() -> None:
    """A reader with a twin of a lower number waiting for it is read before other long prompts."""
    bench = Bench(max_step_tokens=16)
    shared = prompt_ids(100, seed=1)
    bench.submit("reader", [*shared, 1], 1, priority=4)
    bench.step()
    bench.submit("other", prompt_ids(60, seed=2), 1)
    bench.step()
    assert bench.engine.stats().running == 2
    bench.submit("twin", [*shared, 2], 1, priority=-1)
    order: list[str] = []
    while bench.engine.has_work:
        bench.step()
        order += [n for n, a in bench.answers.items() if a.ending and n not in order]
    assert order.index("twin") < order.index("other")


# Tenants


def test_a_flood_of_one_tenant_does_not_keep_another_waiting() -> None:
    """Who has had least is next: the one request of b does not wait for the thirty of a."""
    bench = Bench(max_running_requests=1)
    for number in range(30):
        bench.submit(f"a{number}", prompt_ids(9, seed=number), 2, tenant="a")
    bench.step()
    bench.submit("b", prompt_ids(9, seed=99), 2, tenant="b")
    names = started(bench)
    assert names.index("b") <= 1
    assert [name for name in names if name != "b"] == [f"a{number}" for number in range(1, 30)]


def test_tenants_get_equal_parts_of_what_is_computed() -> None:
    """Of two floods, the one with prompts three times as long gets a third of the turns."""
    bench = Bench(max_running_requests=1, prefix_cache=False)
    for number in range(24):
        bench.submit(f"a{number}", prompt_ids(30, seed=number), 1, tenant="a")
        bench.submit(f"b{number}", prompt_ids(10, seed=100 + number), 1, tenant="b")
    first = started(bench)[:24]
    assert 17 <= sum(name.startswith("b") for name in first) <= 19


def test_a_pause_earns_no_credit() -> None:
    """Who comes late starts level with those who are there."""
    shares = TenantShares()
    shares.enter("a")
    shares.charge("a", 1000)
    shares.enter("b")
    assert shares.had("b") == 1000
    shares.charge("b", 50)
    shares.leave("b")
    shares.enter("b")  # nor does leaving and coming back wipe the slate
    assert shares.had("b") == 1050
    shares.leave("a")
    shares.leave("b")
    shares.enter("c")
    assert shares.had("c") == 0


def test_what_is_not_computed_after_all_is_not_counted() -> None:
    """A tenant whose long request is cancelled unread is not behind for it."""
    bench = Bench(max_step_tokens=10)
    bench.submit("stays", prompt_ids(5, seed=3), 60, tenant="a")
    bench.step()
    bench.submit("gone", prompt_ids(400, seed=1), 1, tenant="a")
    bench.step()
    bench.engine.cancel(RequestId("gone"))
    assert bench.engine._scheduler.tenants.had("a") <= 5 + 2 + 10


# Room


def large_and_small(max_overtakes: int) -> tuple[Bench, list[str]]:
    """Return who started: one holds most of the pool, a large one waits, small ones come."""
    bench = Bench(n_blocks=24, growth_blocks=0, max_overtakes=max_overtakes)
    bench.submit("holder", prompt_ids(40, seed=1), 12)
    bench.step()
    bench.submit("large", prompt_ids(60, seed=2), 2)
    names: list[str] = []
    for number in range(8):
        bench.submit(f"s{number}", prompt_ids(4, seed=10 + number), 2)
        names += starts_of_a_step(bench)
    return bench, names + started(bench)


def test_those_who_fit_pass_one_who_does_not() -> None:
    """A large request without room lets small ones pass, as often as is set, and no more."""
    for most in (0, 2, 5):
        bench, names = large_and_small(most)
        assert names.index("large") == most
        expected = oracle(bench.reference, prompt_ids(60, seed=2), 2)
        assert expected.is_same(bench.answers["large"].token_ids)


def test_the_limit_of_overtakes_holds_within_one_step() -> None:
    """Several who fit are there at once: no more of them pass than may."""
    bench = Bench(n_blocks=24, growth_blocks=0, max_overtakes=3)
    bench.submit("holder", prompt_ids(40, seed=1), 12)
    bench.step()
    bench.submit("large", prompt_ids(60, seed=2), 2)
    for number in range(8):
        bench.submit(f"s{number}", prompt_ids(4, seed=10 + number), 2)
    assert starts_of_a_step(bench) == ["s0", "s1", "s2"]
    assert started(bench)[0] == "large"


def test_a_full_pool_degrades_step_by_step() -> None:
    """First what is cached goes, then somebody waits, then somebody gives way; all are served."""
    bench = Bench(n_blocks=24, growth_blocks=0, max_waiting_requests=2)
    bench.run(prompt_ids(60, seed=1), 1)
    for number in range(4):
        bench.submit(f"r{number}", prompt_ids(30, seed=2 + number), 20)
        bench.step()
    stats = bench.engine.stats()
    assert stats.evicted_blocks_total > 0
    assert (stats.running, stats.waiting) == (2, 2)
    for number in range(3):
        bench.submit(f"more{number}", prompt_ids(30, seed=9 + number), 2)
    bench.drain()
    assert bench.engine.stats().preemptions_total > 0
    assert bench.answers["more2"].failed.kind is FailureKind.OVERLOADED
    for number in range(4):
        expected = oracle(bench.reference, prompt_ids(30, seed=2 + number), 20)
        assert expected.is_same(bench.answers[f"r{number}"].token_ids)


def test_twins_who_wait_for_a_reader_do_not_fill_the_queue() -> None:
    """They count less than others, but not without end: at twice the limit all are refused."""
    bench = Bench(max_waiting_requests=4, max_step_tokens=4, max_running_requests=2)
    shared = prompt_ids(40, seed=1)
    for number in range(4):
        bench.submit(f"t{number}", [*shared, number], 1)
    bench.step()  # one reads, three wait for it
    for number in range(9):
        bench.submit(f"o{number}", prompt_ids(6, seed=number), 1)
        bench.step()
    bench.drain()
    assert all(bench.answers[f"t{number}"].finished for number in range(4))
    refused = [name for name, answer in bench.answers.items() if isinstance(answer.ending, Failed)]
    assert refused == []


def test_a_queue_has_an_end_for_twins_too() -> None:
    """Twice max_waiting_requests is the most that waits, whatever it waits for."""
    bench = Bench(max_waiting_requests=3, max_step_tokens=4)
    shared = prompt_ids(200, seed=1)
    for number in range(12):
        bench.submit(f"t{number}", [*shared, number], 1)
        bench.step()
    assert bench.engine.stats().waiting == 6
    kinds = [answer.failed.kind for answer in bench.answers.values() if answer.ending is not None]
    assert kinds == [FailureKind.OVERLOADED] * 5


def test_who_would_get_nothing_of_a_step_holds_no_room_yet() -> None:
    """Of three long prompts one is read; the others wait, and match what is cached by then."""
    bench = Bench(max_step_tokens=16)
    for number in range(3):
        bench.submit(f"r{number}", prompt_ids(60, seed=number), 1)
    bench.step()
    stats = bench.engine.stats()
    assert (stats.running, stats.waiting, stats.pool.held) == (1, 2, 60 // BLOCK)
    bench.drain()


def test_a_request_that_cannot_be_scheduled_fails_alone() -> None:
    """An error of the index for one prompt ends that one; the step goes on with the others."""
    bench = Bench()
    acquire = bench.engine.cache.acquire

    def refuse_long(namespace: object, tokens: bytes, **options: object) -> object:
        if len(tokens) == 4 * 30:
            raise RuntimeError("planted")
        return acquire(namespace, tokens, **options)  # type: ignore[arg-type]

    bench.engine.cache.acquire = refuse_long  # type: ignore[method-assign, assignment]
    bench.submit("bad", prompt_ids(30, seed=1), 3)
    bench.submit("good", prompt_ids(9, seed=2), 3)
    bench.drain()
    assert bench.answers["bad"].failed.kind is FailureKind.INTERNAL
    assert "planted" not in bench.answers["bad"].failed.message
    assert len(bench.answers["good"].token_ids) == 3


def test_two_that_fit_only_alone_run_in_turns() -> None:
    """In a pool for one and a half, each gives way and comes back until both are through."""
    bench = Bench(n_blocks=13, growth_blocks=0)
    for name, seed in (("one", 1), ("two", 2)):
        bench.submit(name, prompt_ids(16, seed=seed), 34)
    bench.drain(max_steps=400)
    assert bench.engine.stats().preemptions_total >= 1
    for name, seed in (("one", 1), ("two", 2)):
        expected = oracle(bench.reference, prompt_ids(16, seed=seed), 34)
        assert expected.is_same(bench.answers[name].token_ids)
