"""The remote tier on a real server: shared, checked, and prompt to say that it cannot."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import redis

from prefixcache.errors import ConfigError, TierError
from prefixcache.tiers import StoredScope
from prefixcache.tiers.remote import RemoteTier
from prefixcache.tiers.remote.names import safe_address
from tests.support.stores import PASSWORD, Store, store
from tests.tiers.contract import TierContract
from tests.tiers.made import SHOP, owner, prompt, records, same, wanted

SHORT = 0.3  # seconds that a server has to answer
STORED = records(prompt(1, 20))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One for all tests of this file."""
    with store(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def client(server: Store) -> Iterator[redis.Redis]:
    """A look at the server, emptied."""
    with server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def tier(server: Store, client: redis.Redis) -> Iterator[RemoteTier]:
    """A gateway's, that cuts values small."""
    del client
    with closing(RemoteTier(server.url, max_value_bytes=1024, timeout_seconds=5)) as tier:
        yield tier


@pytest.fixture
def other(server: Store) -> Iterator[RemoteTier]:
    """Another gateway's, with larger values, over TCP."""
    with closing(RemoteTier(server.tcp_url, timeout_seconds=5)) as tier:
        yield tier


class TestRemoteTier(TierContract):
    """What every tier keeps to."""


def keys_of(client: redis.Redis) -> list[bytes]:
    return sorted(key for key in client.scan_iter() if not key.endswith(b":scopes"))


def test_gateways_share_it(tier: RemoteTier, other: RemoteTier) -> None:
    """What one has written the other reads, whatever sizes of values each has."""
    large = records(prompt(2, 3), part_bytes=5000)
    tier.write(STORED + large)
    assert same(other.read(wanted(STORED)), STORED)
    assert same(other.read(wanted(large)), large)
    theirs = records(prompt(3, 3), part_bytes=5000)
    other.write(theirs)
    assert same(tier.read(wanted(theirs)), theirs)


def test_one_gateways_invalidation_holds_for_all(tier: RemoteTier, other: RemoteTier) -> None:
    """Nobody reads what was written before, and what comes after is read by all."""
    tier.write(STORED)
    assert other.read(wanted(STORED))
    tier.invalidate(StoredScope(tenant=SHOP.tenant))
    assert other.read(wanted(STORED)) == []
    other.write(STORED)
    assert same(tier.read(wanted(STORED)), STORED)


def test_keys_hold_digests_alone(
    tier: RemoteTier, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Tenant and namespace are in the key as digests, and in no log."""
    with caplog.at_level(logging.DEBUG):
        tier.write(STORED)
    (first, *_) = keys_of(client)
    assert first.startswith(f"prefixcache:1:{SHOP.tenant.hex()}:{SHOP.root_key().hex()}:".encode())
    assert SHOP.tenant.hex() not in caplog.text


def test_values_are_no_larger_than_set(tier: RemoteTier, client: redis.Redis) -> None:
    """Large records are cut in pieces, and all of them expire."""
    tier.write(records(prompt(1, 2), part_bytes=10_000))
    names = keys_of(client)
    assert len(names) > 20
    assert all(client.strlen(name) <= 1024 for name in names)
    assert all(0 < client.ttl(name) <= 86_400 for name in names)


def test_what_is_read_lives_on(server: Store, client: redis.Redis) -> None:
    """A block's time begins again when it is read."""
    with closing(RemoteTier(server.url, ttl_seconds=1000, max_value_bytes=1024)) as tier:
        stored = records(prompt(1), part_bytes=3000)
        tier.write(stored)
        for name in keys_of(client):
            client.expire(name, 10)
        assert tier.read(wanted(stored))
    assert all(client.ttl(name) > 900 for name in keys_of(client))


@pytest.mark.parametrize("part_bytes", [100, 3000])
def test_every_flipped_byte_is_refused(
    tier: RemoteTier, client: redis.Redis, part_bytes: int
) -> None:
    """Whatever byte of a value is another one: what is read is right, and a write mends it."""
    stored = records(prompt(1), part_bytes=part_bytes)
    tier.write(stored)
    n_flips = 0
    for name in keys_of(client):
        value = client.get(name)
        for place in range(0, len(value), 1 if part_bytes == 100 else 41):
            harmed = bytearray(value)
            harmed[place] ^= 0x55
            client.set(name, bytes(harmed))
            found = tier.read(wanted(stored))
            assert found == [] or same(found, stored)  # a size of pieces that cuts alike
            n_flips += 1
            tier.write(stored)
            assert client.get(name) == value or found
            client.set(name, value)
    assert tier.refusals.total > n_flips * 0.9  # a stamp that is another one is no damage


def test_cut_and_lost_values_are_no_records(tier: RemoteTier, client: redis.Redis) -> None:
    """A value that lost its end, or a piece that is gone, is a miss that a write puts right."""
    stored = records(prompt(1), part_bytes=3000)
    tier.write(stored)
    for name in keys_of(client):
        value = client.get(name)
        for harmed in (value[:-1], value[: len(value) // 2], b"", value + b"x", None):
            if harmed is None:
                client.delete(name)
            else:
                client.set(name, harmed)
            assert tier.read(wanted(stored)) == []
            tier.write(stored)
            assert same(tier.read(wanted(stored)), stored)


def test_another_version_or_type_is_no_record(tier: RemoteTier, client: redis.Redis) -> None:
    """What others have put under our keys is left out."""
    stored = records(prompt(1))
    tier.write(stored)
    (name,) = keys_of(client)
    value = bytearray(client.get(name))
    value[8:10] = b"\2\0"
    client.set(name, bytes(value))
    assert tier.read(wanted(stored)) == []
    assert tier.refusals.counts == {"version": 1}
    client.delete(name)
    client.rpush(name, "something else")
    assert tier.read(wanted(stored)) == []


def test_a_record_of_another_tenant_is_refused(tier: RemoteTier, client: redis.Redis) -> None:
    """Even where a tenant's value lies under another's key, whose it is is compared."""
    ours, theirs = records(prompt(1)), records(prompt(1), owner("rival"))
    tier.write(ours + theirs)
    first, second = keys_of(client)
    client.set(first, client.get(second))
    client.set(second, client.get(first))
    both = [tier.read(wanted(ours)), tier.read(wanted(theirs))]
    assert sorted(map(len, both)) == [0, 1]
    assert tier.refusals.counts == {"other_block": 1}


def test_a_server_that_lost_its_counts_is_not_believed(
    tier: RemoteTier, client: redis.Redis
) -> None:
    """What was invalidated stays dead when the server forgets that it was."""
    tier.write(STORED)
    tier.invalidate(StoredScope())
    client.delete("prefixcache:1:scopes")
    assert tier.read(wanted(STORED)) == []
    tier.write(records(prompt(2)))
    assert tier.read(wanted(STORED)) == []


def refused(call: Callable[[], object], match: str) -> None:
    """Have a call raise TierError, not wait for ever, with no secret in it."""
    with pytest.raises(TierError, match=match) as caught:
        call()
    assert PASSWORD not in str(caught.value)
    assert caught.value.__cause__ is None


def calls(tier: RemoteTier) -> list[Callable[[], object]]:
    return [
        lambda: tier.read(wanted(STORED)),
        lambda: tier.write(STORED),
        lambda: tier.invalidate(StoredScope()),
    ]


def test_a_hanging_server_is_left_and_found_again(server: Store, client: redis.Redis) -> None:
    """Each call says so in its time; when the server goes on, so does the tier."""
    with closing(RemoteTier(server.tcp_url, timeout_seconds=SHORT)) as tier:
        tier.write(STORED)
        with server.hanging():
            for call in calls(tier):
                refused(call, "did not answer in 0.3 s")
        assert client.ping()
        tier.write(STORED)
        assert same(tier.read(wanted(STORED)), STORED)


def test_a_server_that_is_not_there_is_told() -> None:
    """A port where nobody listens is a TierError at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tier = RemoteTier(f"redis://me:{PASSWORD}@127.0.0.1:{port}/0", timeout_seconds=SHORT)
    for call in calls(tier):
        refused(call, f"redis://127.0.0.1:{port}/0")
    tier.close()


@pytest.mark.parametrize("answer", [b"$1000\r\nabc", b"!!what\r\n", b"", b"+OK\r\n" * 3])
def test_a_server_that_talks_nonsense_is_told(answer: bytes) -> None:
    """Half an answer, another protocol, none at all, or the wrong ones: nothing is read."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        ends = threading.Event()
        thread = threading.Thread(target=talk, args=(listener, answer, ends))
        thread.start()
        try:
            with closing(RemoteTier(url, timeout_seconds=SHORT)) as tier:
                refused(lambda: tier.read(wanted(STORED)), "cannot be used")
        finally:
            ends.set()
            thread.join()


def talk(listener: socket.socket, answer: bytes, ends: threading.Event) -> None:
    """Answer each connection's first bytes with `answer`, and say no more."""
    listener.settimeout(0.05)
    taken = []
    while not ends.is_set():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        taken.append(connection)
        connection.settimeout(1)
        connection.recv(65_536)
        connection.sendall(answer)
    for connection in taken:
        connection.close()


def test_a_wrong_password_is_told(server: Store) -> None:
    """The server does not let it in; the password is not repeated."""
    url = server.tcp_url.replace(PASSWORD, f"not-{PASSWORD}")
    with closing(RemoteTier(url, timeout_seconds=SHORT)) as tier:
        refused(lambda: tier.read(wanted(STORED)), "lets this user in")


def test_a_full_server_is_told(server: Store, client: redis.Redis) -> None:
    """The message says which settings of the server help."""
    with closing(RemoteTier(server.url, timeout_seconds=5)) as tier:
        client.config_set("maxmemory", 1)
        try:
            refused(lambda: tier.write(STORED), "maxmemory-policy")
        finally:
            client.config_set("maxmemory", 0)
        tier.write(STORED)
        assert same(tier.read(wanted(STORED)), STORED)


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost", "redis://h:port/0", ""])
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    """At the start, not with the first request."""
    with pytest.raises(ConfigError, match="remote"):
        RemoteTier(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:12/secret@host:6379/0",
        "redis://me:12#secret@host:6379/0",
        "redis://me:a@12/secret@host:6379/0",
        "redis://me:12?secret@host:6379/0",
        "me:secret@host:6379",
        "redis://:secret@host:6379/0?password=secret",
        "unix://me:secret@/run/redis?password=secret",
    ],
)
def test_no_part_of_a_password_is_in_an_address(url: str) -> None:
    """Not even where it was not quoted, so that it looks like a path."""
    address = safe_address(url)
    assert "secret" not in address
    assert "me:" not in address


def test_settings_that_cannot_work_are_refused() -> None:
    """With the setting's name."""
    with pytest.raises(ConfigError, match="remote_ttl_seconds"):
        RemoteTier("redis://localhost", ttl_seconds=0)
    with pytest.raises(ConfigError, match="remote_value_bytes"):
        RemoteTier("redis://localhost", max_value_bytes=10)


def test_without_the_client_it_says_what_to_install() -> None:
    """The module can be imported without the extra; a tier cannot be made."""
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from prefixcache.tiers.remote import RemoteTier\n"
        "from prefixcache.errors import ConfigError\n"
        "try: RemoteTier('redis://:secret@localhost/0')\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "prefixcache[remote]" in done.stdout
    assert "secret" not in done.stdout
