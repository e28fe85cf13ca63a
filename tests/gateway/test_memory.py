"""What is remembered for a tenant is its own, and bounded."""

from __future__ import annotations

import random

import pytest

from gateway.memory import TenantMemory


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def memory(
    clock: Clock | None = None, *, tenant: int = 10_000, all_of_it: int = 100_000
) -> TenantMemory[str]:
    return TenantMemory[str](
        max_tenant_bytes=tenant, max_bytes=all_of_it, ttl_seconds=10, clock=clock or Clock()
    )


def test_a_tenant_finds_its_own_alone() -> None:
    """The same key of two tenants leads to two values, and nowhere for a third."""
    kept = memory()
    kept.put("a", "key", "of a", n_bytes=1)
    kept.put("b", "key", "of b", n_bytes=1)
    assert (kept.get("a", "key"), kept.get("b", "key")) == ("of a", "of b")
    assert kept.get("c", "key") is None
    assert kept.pop("a", "key") == "of a"
    assert kept.get("a", "key") is None
    assert kept.get("b", "key") == "of b"


def test_values_are_forgotten_when_their_time_is_over() -> None:
    """A value is found until it expires, and takes no room after the next one comes."""
    clock = Clock()
    kept = memory(clock)
    kept.put("a", "key", "value", n_bytes=5000)
    clock.now = 9.9
    assert kept.get("a", "key") == "value"
    clock.now = 10.0
    assert kept.get("a", "key") is None
    assert kept.pop("a", "key") is None
    kept.put("b", "key", "value", n_bytes=5000)
    kept.put("a", "key", "value", n_bytes=5000)
    clock.now = 20.0
    kept.put("c", "key", "value", n_bytes=1)
    assert kept.n_bytes < 1000


def test_the_oldest_of_a_tenant_make_room() -> None:
    """A full tenant loses its own oldest values, and nobody else's."""
    kept = memory()
    kept.put("b", "key", "of b", n_bytes=5000)
    for n in range(10):
        kept.put("a", str(n), str(n), n_bytes=2000)
    assert [kept.get("a", str(n)) for n in range(10)] == [None] * 6 + ["6", "7", "8", "9"]
    assert kept.get("b", "key") == "of b"


def test_whoever_has_most_makes_room_for_all() -> None:
    """When all together have too much, the largest tenant's oldest go."""
    kept = memory(all_of_it=12_000)
    kept.put("small", "key", "value", n_bytes=1000)
    for n in range(4):
        kept.put("large", str(n), str(n), n_bytes=2000)
    kept.put("new", "key", "value", n_bytes=2000)
    assert kept.get("small", "key") == kept.get("new", "key") == "value"
    assert kept.get("large", "0") is None
    assert kept.get("large", "3") == "3"


@pytest.mark.parametrize("tenant", [0, 100])
def test_what_is_too_large_is_not_kept(tenant: int) -> None:
    """A value over the limit is passed over; a limit of 0 keeps nothing."""
    kept = memory(tenant=tenant)
    kept.put("a", "key", "value", n_bytes=1)
    assert kept.get("a", "key") is None
    assert kept.n_bytes == 0


def test_the_books_balance() -> None:
    """After any calls the count is that of what can be found, and within the limits."""
    clock, rng = Clock(), random.Random(5)
    kept = memory(clock, tenant=3000, all_of_it=7000)
    for _ in range(3000):
        tenant, key = rng.choice("abcd"), rng.choice("0123456789")
        clock.now += rng.random()
        if rng.random() < 0.2:
            kept.pop(tenant, key)
        else:
            kept.put(tenant, key, key, n_bytes=rng.randrange(1500))
        assert kept.n_bytes <= 7000
        found = [(t, k) for t in "abcd" for k in "0123456789" if kept.get(t, k) is not None]
        assert len(found) * 256 <= kept.n_bytes
    for tenant in "abcd":
        for key in "0123456789":
            kept.pop(tenant, key)
    assert kept.n_bytes == 0
