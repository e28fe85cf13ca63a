"""What a gateway costs by itself: without a model, on one core, against the plainest handler."""

from __future__ import annotations

import os
import statistics
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec
import psutil

from gateway.client.listeners import listener_at
from gateway.client.load import Exchange, Load, load, parts_of, quantile, request_bytes
from gateway.client.own_server import OwnServer, own_server, started_server
from gateway.client.plain_server import PATH, Answers
from gateway.client.streaming import BenchError
from gateway.keys import hash_of, new_key

OWN, PLAIN = "gateway", "plain"
_WARM_UPS = 20  # requests
_PLENTY = 10**12  # a limit that is looked at and never met
_SYSTEM = "You are a helpful assistant of a bank. " + "Be brief and polite. " * 20
_LIMITS = """
requests_per_minute = {plenty}
tokens_per_minute = {plenty}
tokens_per_month = {plenty}
max_concurrent_requests = {plenty}
max_queued = {plenty}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a sitting takes place."""

    folder: Path  # for what servers read and write; its owner deletes it
    model: Path  # a folder with a tokenizer
    server_core: int
    client_core: int
    key: str

    @classmethod
    def on_two_cores(cls, folder: Path, model: Path) -> Setting:
        """Keep this process to one core, and the servers to another.

        Raises:
            BenchError: there is only one.
        """
        cores = sorted(psutil.Process().cpu_affinity())
        if len(cores) < 2:
            raise BenchError("one core is not enough: a server and its load need one each")
        setting = cls(
            folder=folder,
            model=model,
            server_core=cores[0],
            client_core=cores[1],
            key=new_key(os.urandom),
        )
        psutil.Process().cpu_affinity([setting.client_core])
        return setting

    @asynccontextmanager
    async def gateway(self, *flags: str) -> AsyncIterator[OwnServer]:
        """Run `prefixcache serve` with keys, limits, accounts on disk and its log, but no model."""
        table = f'[tenants.bench]\nkey_hashes = ["{hash_of(self.key)}"]'
        config = self.folder / "gateway.toml"
        config.write_text(table + _LIMITS.format(plenty=_PLENTY), encoding="utf-8")
        echo = ("--config", str(config), "--backend", "echo", "--model", str(self.model))
        accounts = str(self.folder / "usage.sqlite3")
        with (self.folder / "gateway.log").open("wb") as log:
            async with own_server(
                (*echo, "--log-level", "info", *flags), usage_db=accounts, log_file=log
            ) as server:
                self.hold(server.pid)
                yield server

    @asynccontextmanager
    async def plain(self, answers: Answers, port: int = 0) -> AsyncIterator[OwnServer]:
        """Run the plainest handler."""
        file = self.folder / "answers.json"
        file.write_bytes(msgspec.json.encode(answers))
        module = ("gateway.client.plain_server", str(file), str(port))
        async with started_server(module) as server:
            self.hold(server.pid)
            yield server

    def hold(self, pid: int) -> None:
        """Keep a process, with the threads that it has, to the servers' core."""
        for thread in psutil.Process(pid).threads():
            os.sched_setaffinity(thread.id, {self.server_core})

    def request(self, url: str, body: bytes, path: str = PATH) -> bytes:
        """Return a request with the tenant's key; a GET where there is no body."""
        return request_bytes(url, path, body, key=self.key)

    def chat(self, user: str, *, n_tokens: int, is_streamed: bool) -> bytes:
        """Return the body of a question whose tokens, over and over, are the answer's."""
        messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": user}]
        body = {"model": self.model.name, "messages": messages, "max_tokens": n_tokens}
        return msgspec.json.encode(body | {"stream": is_streamed, "ignore_eos": True})


@dataclass(frozen=True, slots=True)
class Cell:
    """One load: how many requests at a time, and whether their answers are streamed."""

    is_streamed: bool
    at_once: int


async def answers_of(setting: Setting, url: str, *, n_tokens: int) -> Answers:
    """Return what the gateway answers, as bytes for another server to send."""
    exchange = await Exchange.open(url)
    try:
        found = [
            parts_of(await exchange.ask(setting.request(url, _question(setting, n_tokens, kind))))
            for kind in (False, True)
        ]
    finally:
        exchange.close()
    return Answers(found[0][0], tuple(found[1]))


async def rates(
    setting: Setting,
    others: Mapping[str, str],
    *,
    at_once: Sequence[int],
    n_tokens: int,
    seconds: float,
    repeats: int,
    plain_port: int,
    report: Callable[[str], None],
) -> list[dict[str, object]]:
    """Put each load on each server in turns, and return a row of medians for each of both.

    Args:
        others: URLs of further servers by name, which are held to the servers' core, too.
        plain_port: where the plain handler answers, so that others can pass requests on to it.
    """
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(setting.gateway())
        answers = await answers_of(setting, own.url, n_tokens=n_tokens)
        plain = await stack.enter_async_context(setting.plain(answers, plain_port))
        setting.hold(own.pid)  # the threads that it has started by now
        urls = {OWN: own.url, PLAIN: plain.url, **others}
        for name, url in others.items():
            _hold_all(setting, name, url)
        for name, kind in product(urls, (False, True)):
            await _warm_up(setting, urls[name], _question(setting, n_tokens, kind))
        cells = [Cell(*cell) for cell in product((False, True), at_once)]
        loads: dict[tuple[Cell, str], list[Load]] = {}
        for turn in range(repeats):
            names = list(urls)[turn % len(urls) :] + list(urls)[: turn % len(urls)]
            for cell, name in product(cells, names):
                body = _question(setting, n_tokens, cell.is_streamed)
                request = setting.request(urls[name], body)
                found = await load(urls[name], request, at_once=cell.at_once, seconds=seconds)
                loads.setdefault((cell, name), []).append(found)
                report(f"turn {turn + 1}: {name}: {cell}: {found.per_second:.0f} requests/s")
        return [_row(loads, cell, name, n_tokens) for cell in cells for name in urls]


async def _warm_up(setting: Setting, url: str, body: bytes) -> None:
    """Have a server do once what it does the first time alone."""
    exchange = await Exchange.open(url)
    for _ in range(_WARM_UPS):
        await exchange.ask(setting.request(url, body))
    exchange.close()


def _question(setting: Setting, n_tokens: int, is_streamed: bool) -> bytes:
    return setting.chat("How do I open one?", n_tokens=n_tokens, is_streamed=is_streamed)


def _hold_all(setting: Setting, name: str, url: str) -> None:
    listener = listener_at(url)
    if listener is None:
        raise BenchError(f"{name}: no process is seen at {url}; it must be on this machine")
    root = psutil.Process(listener.pid)
    for process in (root, *root.children(recursive=True)):
        setting.hold(process.pid)


def _row(
    loads: Mapping[tuple[Cell, str], Sequence[Load]], cell: Cell, name: str, n_tokens: int
) -> dict[str, object]:
    own, plain = loads[cell, name], loads[cell, PLAIN]
    p50, p99 = _milliseconds(own, 0.5), _milliseconds(own, 0.99)
    ratios = [ours.per_second / other.per_second for ours, other in zip(own, plain, strict=True)]
    return {
        "server": name,
        "tokens": n_tokens,
        "is_streamed": cell.is_streamed,
        "at_once": cell.at_once,
        "requests_per_second": round(statistics.median(each.per_second for each in own), 1),
        "to_plain": round(statistics.median(ratios), 3),
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
        "added_p50_ms": round(p50 - _milliseconds(plain, 0.5), 2),
        "added_p99_ms": round(p99 - _milliseconds(plain, 0.99), 2),
    }


def _milliseconds(loads: Sequence[Load], part: float) -> float:
    return 1000 * statistics.median(quantile(each.durations, part) for each in loads)
