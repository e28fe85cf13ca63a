"""Accounts of usage: complete, private, and there after a kill."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.request_log import JsonFormatter
from gateway.tenants import TenantConfig
from gateway.usage_db import AccountKey, UsageDb, UsageFileError, read_usage, state_file
from prefixcache.types import FinishReason
from tests.support.bodies import CHAT, CHAT_BODY, TEXT, TEXT_BODY, error_of
from tests.support.gateways import MODEL, echo_backend
from tests.support.scripted import ScriptedBackend
from tests.support.tenancy import ACME, ADMIN, BETA, DAY_SECONDS, Keyed, bearer, keyed_gateway
from tests.support.tokenizers import write_piece_tokenizer
from tests.support.waiting import until

KEY = AccountKey("2026-11-30", "acme", "tiny")
DAYS = {"first_day": "2026-11-01", "last_day": "2026-11-30"}


def amounts(db: UsageDb, tenant: str | None = None) -> dict[AccountKey, dict[str, int]]:
    return {row.key: dict(row.amounts) for row in db.rows(**DAYS, tenant=tenant)}


async def usage_of(keyed: Keyed, query: str = "") -> dict[str, Any]:
    url = f"{keyed.gateway.url}/admin/usage{query}"
    async with keyed.gateway.http.get(url, headers=bearer(ADMIN)) as reply:
        assert reply.status == 200
        found: dict[str, Any] = await reply.json()
        return found


def test_counters_add_up_by_day_tenant_and_model(tmp_path: Path) -> None:
    """What is added is there at once to read, summed, and only of the days that were asked for."""
    db = UsageDb.open(tmp_path / "state/usage.sqlite3")
    db.add(KEY, {"requests": 1, "output_tokens": 5})
    db.add(KEY, {"requests": 1})
    other = KEY._replace(tenant="'; DROP TABLE usage; --")
    db.add(other, {"requests": 1})
    db.add(KEY._replace(day="2026-12-01"), {"requests": 1})
    assert amounts(db) == {KEY: {"requests": 2, "output_tokens": 5}, other: {"requests": 1}}
    db.add(KEY, {"requests": 1})
    assert amounts(db, "acme") == {KEY: {"requests": 3, "output_tokens": 5}}
    db.close()


def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    """Folder and file that are made for it can be read by nobody else."""
    path = tmp_path / "state/usage.sqlite3"
    db = UsageDb.open(path)
    db.add(KEY, {"requests": 1})
    db.flush()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    files = list(path.parent.iterdir())
    assert len(files) >= 2, "a write-ahead log beside it"
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    db.close()


def test_a_file_outlives_its_server(tmp_path: Path) -> None:
    """What was closed is read by the next, and by who only reads; both servers' sums are one."""
    path = tmp_path / "usage.sqlite3"
    first, second = UsageDb.open(path), UsageDb.open(path)
    for db in (first, second):
        db.start()
        db.add(KEY, {"requests": 1})
    first.close()
    second.close()
    (row,) = read_usage(path, **DAYS, tenant=None)
    assert dict(row.amounts) == {"requests": 2}
    third = UsageDb.open(path)
    assert amounts(third) == {KEY: {"requests": 2}}
    third.close()


def test_what_ended_is_there_after_a_kill(tmp_path: Path) -> None:
    """A process that is killed has left what it added, without being asked to write it."""
    path = tmp_path / "usage.sqlite3"
    code = f"""
import time
from pathlib import Path
from gateway.usage_db import AccountKey, UsageDb
db = UsageDb.open(Path({str(path)!r}))
db.start()
db.add(AccountKey(*{tuple(KEY)!r}), {{"requests": 7}})
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        asyncio.run(until(lambda: path.exists() and read_amounts(path), 30))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert read_amounts(path) == {"requests": 7}
    db = UsageDb.open(path)
    assert amounts(db) == {KEY: {"requests": 7}}
    db.close()


def read_amounts(path: Path) -> dict[str, int]:
    try:
        return {
            name: n
            for row in read_usage(path, **DAYS, tenant=None)
            for name, n in row.amounts.items()
        }
    except UsageFileError:
        return {}  # it is being made


def test_what_cannot_be_written_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While another process holds the file nothing is lost; it is said once, and written later."""
    path = tmp_path / "usage.sqlite3"
    db = UsageDb.open(path, busy_seconds=0.01)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    for _ in range(3):
        db.add(KEY, {"requests": 1})
        db.flush()
    assert len([record for record in caplog.records if "usage" in record.name]) == 1
    holder.execute("ROLLBACK")
    holder.close()
    assert amounts(db) == {KEY: {"requests": 3}}
    db.close()


@pytest.mark.parametrize(
    "content", [b"not a database at all, but a text of some length" * 20, None]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes | None) -> None:
    """A text, and a database of something else, are left as they are."""
    path = tmp_path / "other"
    if content is not None:
        path.write_bytes(content)
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE usage (mine)")
        connection.close()
    for read in (UsageDb.open, lambda path: read_usage(path, **DAYS, tenant=None)):
        with pytest.raises(UsageFileError, match="other"):
            read(path)


def test_places_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """A folder, and a file under a file, say so."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file/usage.sqlite3"):
        with pytest.raises(UsageFileError, match="usage_db"):
            UsageDb.open(path)
    with pytest.raises(UsageFileError, match="no file"):
        read_usage(tmp_path / "missing", **DAYS, tenant=None)


def test_the_state_directory_is_the_users() -> None:
    """XDG's variable where it is a whole path, else the home."""
    home = {"HOME": "/home/me"}
    assert state_file(home) == Path("/home/me/.local/state/prefixcache/usage.sqlite3")
    assert state_file({**home, "XDG_STATE_HOME": "/s"}) == Path("/s/prefixcache/usage.sqlite3")
    assert state_file({**home, "XDG_STATE_HOME": "s"}) == state_file(home)


async def test_every_request_is_on_its_tenants_account(tmp_path: Path) -> None:
    """Answered, streamed, failed and refused ones, by tenant and model, with their tokens."""
    config = TenantConfig(max_queued=2)
    async with keyed_gateway(echo_backend(tmp_path), config) as keyed:
        post = keyed.gateway.post
        assert (await post(CHAT, CHAT_BODY, **bearer(ACME)))[0] == 200
        stream = await keyed.openai(ACME).chat.completions.create(**CHAT_BODY, stream=True)
        async for _ in stream:
            pass
        assert (await post(CHAT, {**CHAT_BODY, "n": 3}, **bearer(ACME)))[0] == 429
        assert (await post(CHAT, {"model": 5}, **bearer(ACME)))[0] == 400
        assert (await post(TEXT, {**TEXT_BODY, "n": 2}, **bearer(BETA)))[0] == 200
        report = await usage_of(keyed)
    none = dict.fromkeys(report["total"], 0)
    acme = {"day": "2026-11-30", "tenant": "acme"}
    assert report["data"] == [
        {**none, **acme, "model": None, "requests": 1, "failed_requests": 1},
        {
            **none,
            **acme,
            "model": MODEL,
            "requests": 3,
            "refused_requests": 1,
            "uncached_tokens": 3,
            "read_tokens": 1,
            "output_tokens": 4,
        },
        {
            **none,
            **acme,
            "tenant": "beta",
            "model": MODEL,
            "requests": 1,
            "uncached_tokens": 2,
            "output_tokens": 4,
        },
    ]
    assert report["total"]["requests"] == 5
    assert (report["from"], report["to"]) == ("2026-11-01", "2026-11-30")


async def test_a_client_that_left_has_used_what_it_got(tmp_path: Path) -> None:
    """A stream that was cut off is marked cancelled, with its prompt and the output so far."""
    write_piece_tokenizer(tmp_path, [b"one"])
    backend = ScriptedBackend(tmp_path, [["x"] * 10 + [None]])
    async with keyed_gateway(backend) as keyed:
        stream = await keyed.openai(ACME).chat.completions.create(**CHAT_BODY, stream=True)
        texts = aiter(stream)
        for _ in range(11):
            await anext(texts)
        await stream.close()
        acme = keyed.tenancy.roster.tenants["acme"]
        await until(lambda: keyed.tenancy.meter(acme).n_open == 0)
        (line,) = (await usage_of(keyed))["data"]
    assert (line["requests"], line["cancelled_requests"], line["output_tokens"]) == (1, 1, 10)
    assert line["uncached_tokens"] > 0


async def test_accounts_are_found_by_tenant_and_day(tmp_path: Path) -> None:
    """`tenant`, `from` and `to` narrow the report; anything else is a 400 that names it."""
    async with keyed_gateway(echo_backend(tmp_path)) as keyed:
        for key in (ACME, BETA):
            await keyed.gateway.post(CHAT, CHAT_BODY, **bearer(key))
        keyed.wall_clock.now += DAY_SECONDS
        await keyed.gateway.post(CHAT, CHAT_BODY, **bearer(ACME))
        for query, found in (
            ("", [("2026-12-01", "acme")]),
            (
                "?from=2026-11-30",
                [("2026-11-30", "acme"), ("2026-11-30", "beta"), ("2026-12-01", "acme")],
            ),
            ("?from=2026-11-30&to=2026-11-30&tenant=beta", [("2026-11-30", "beta")]),
            ("?tenant=nobody", []),
        ):
            lines = (await usage_of(keyed, query))["data"]
            assert [(line["day"], line["tenant"]) for line in lines] == found
        for query, param in (
            ("?from=yesterday", "from"),
            ("?to=2026-13-01", "to"),
            ("?day=1", "day"),
        ):
            url = f"{keyed.gateway.url}/admin/usage{query}"
            async with keyed.gateway.http.get(url, headers=bearer(ADMIN)) as reply:
                assert reply.status == 400
                assert error_of(await reply.json())["param"] == param


async def test_a_restart_knows_what_was_used(tmp_path: Path) -> None:
    """A second server on the same file goes on counting the month, and refuses at its end."""
    path, config = tmp_path / "usage.sqlite3", TenantConfig(tokens_per_month=8)
    for expected in ([200], [200, 429]):
        async with keyed_gateway(
            echo_backend(tmp_path), config, usage_db=UsageDb.open(path)
        ) as keyed:
            for status in expected:
                assert (await keyed.gateway.post(CHAT, CHAT_BODY, **bearer(ACME)))[0] == status
    (row,) = [row for row in read_usage(path, **DAYS, tenant="acme") if row.key.model]
    assert row.amounts["requests"] == 2


async def test_the_loop_does_not_wait_for_the_file(tmp_path: Path) -> None:
    """While another process holds the file and a thread waits for it, requests are answered."""
    path = tmp_path / "usage.sqlite3"
    db = UsageDb.open(path, busy_seconds=60)
    holder = sqlite3.connect(path, isolation_level=None)
    async with keyed_gateway(echo_backend(tmp_path), usage_db=db) as keyed:
        holder.execute("BEGIN IMMEDIATE")
        db.add(KEY, {"requests": 1})
        writing = asyncio.create_task(asyncio.to_thread(db.flush))
        for _ in range(3):
            assert (await keyed.gateway.post(CHAT, CHAT_BODY, **bearer(ACME)))[0] == 200
        assert not writing.done()
        holder.execute("ROLLBACK")
        holder.close()
        await writing


async def test_a_hit_names_its_tier(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the log's line and on the account; the answer's usage tells cached tokens alone."""
    caplog.set_level(logging.INFO, logger="gateway.requests")
    write_piece_tokenizer(tmp_path, [b"one"])
    backend = ScriptedBackend(tmp_path, [["one", FinishReason.STOP]] * 2)
    backend.tier_tokens = {"host": 2, "disk": 1}
    async with keyed_gateway(backend) as keyed:
        for _ in range(2):
            _, answer = await keyed.gateway.post(CHAT, CHAT_BODY, **bearer(ACME))
        total = (await usage_of(keyed))["total"]
    usage: Any = answer["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 3
    assert "tier" not in str(usage)
    assert (total["host_tokens"], total["disk_tokens"], total["remote_tokens"]) == (4, 2, 0)
    assert total["read_tokens"] == 6
    record = caplog.records[1]
    assert "cached=3 tiers=host:2,disk:1" in record.getMessage()
    line = json.loads(JsonFormatter().format(record))
    assert line["tier_tokens"] == {"host": 2, "disk": 1}
