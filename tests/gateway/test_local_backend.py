"""What happens to the gateway's side when a worker misbehaves."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.local import LocalBackend
from gateway.errors import BadModelError, NotReadyError, StartError
from prefixcache import wire
from prefixcache.config import EngineConfig
from prefixcache.types import Delta, Failed, FailureKind, Finished, Started
from tests.gateway.test_backends import events_of, make_request
from tests.support.fake_worker import (
    BAD,
    DIE,
    ENDLESS,
    EXIT_CODE,
    FLOOD,
    FREEZE,
    GARBAGE,
    HUGE,
    SILENT,
    STUCK,
)
from tests.support.waiting import until

FAKE = (sys.executable, "-m", "tests.support.fake_worker")


@asynccontextmanager
async def local_backend(
    *arguments: str, silence_seconds: float = 10, **options: Any
) -> AsyncIterator[LocalBackend]:
    backend = LocalBackend(
        EngineConfig(),
        command=(*FAKE, *arguments),
        silence_seconds=silence_seconds,
        restart_delay_seconds=0.01,
        **options,
    )
    try:
        await backend.start()
        yield backend
    finally:
        await backend.close()


async def until_ready(backend: LocalBackend) -> None:
    await until(lambda: backend.is_ready)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("exit", f"exit code {EXIT_CODE}"),
        ("fail", "no such model"),
        ("version", f"version {wire.VERSION + 1}"),
        ("hang", "said nothing for 1 seconds"),
    ],
)
async def test_a_worker_that_cannot_start_is_a_start_error(how: str, said: str) -> None:
    """Start raises one error that says why, and leaves no process behind."""
    seconds = 1 if how == "hang" else 60  # what ends by itself may take its time to begin
    backend = LocalBackend(EngineConfig(), command=(*FAKE, "--start", how), silence_seconds=seconds)
    with pytest.raises(StartError, match=said):
        await backend.start()
    await backend.close()
    assert child_processes() == []


@pytest.mark.parametrize(("how", "is_bad_input"), [("fail", False), ("bad", True)])
async def test_a_start_that_fails_for_its_input_is_told_apart(how: str, is_bad_input: bool) -> None:
    """What the worker blames on a setting or a missing model is an error of its own."""
    backend = LocalBackend(EngineConfig(), command=(*FAKE, "--start", how))
    with pytest.raises(StartError) as failed:
        await backend.start()
    assert isinstance(failed.value, BadModelError) == is_bad_input


async def test_a_command_that_does_not_exist_is_a_start_error() -> None:
    """A worker that cannot even be spawned is reported the same way."""
    backend = LocalBackend(EngineConfig(), command=("/nonexistent/worker",))
    with pytest.raises(StartError, match="cannot start the worker"):
        await backend.start()


async def test_a_cancelled_start_leaves_no_process() -> None:
    """Giving up while the worker loads kills and reaps it."""
    said = asyncio.Event()
    backend = LocalBackend(
        EngineConfig(), command=(*FAKE, "--start", "hang"), report=lambda _: said.set()
    )
    starting = asyncio.create_task(backend.start())
    await asyncio.wait_for(said.wait(), 10)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert child_processes() == []


async def test_progress_is_passed_on() -> None:
    """Each line of progress reaches the caller."""
    lines: list[str] = []
    async with local_backend(report=lines.append):
        assert lines == ["loading nothing"]


async def test_the_worker_prints_to_standard_error_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Standard output is the gateway's: what a worker prints there is moved."""
    async with local_backend():
        pass
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "must not reach" in printed.err


async def test_death_fails_what_is_in_flight_and_the_worker_comes_back() -> None:
    """When the worker dies, its requests end with WORKER_DIED and later ones are served."""
    restarts: list[int] = []
    async with local_backend(on_restart=lambda: restarts.append(1)) as backend:
        bystander = asyncio.create_task(events_of(backend, make_request("a", ENDLESS)))
        await until(lambda: backend.stats().running)
        for events in await asyncio.gather(bystander, events_of(backend, make_request("b", DIE))):
            assert isinstance(events[-1], Failed)
            assert events[-1].kind is FailureKind.WORKER_DIED
        assert not backend.is_ready
        with pytest.raises(NotReadyError):
            await events_of(backend, make_request("c"))
        await until_ready(backend)
        assert restarts == [1]
        assert isinstance((await events_of(backend, make_request("d")))[-1], Finished)


@pytest.mark.parametrize(
    ("trouble", "limits", "said"),
    [
        (FREEZE, {"hang_seconds": 0.6}, "nothing for 0.6 seconds"),
        (STUCK, {"hang_seconds": 0.6, "longest_step_seconds": 0.3}, "more than 0.3 seconds"),
    ],
)
async def test_a_worker_that_hangs_is_killed_and_started_again(
    trouble: int, limits: dict[str, float], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is frozen, or whose step never ends, is as good as dead; the log says which."""
    restarts: list[int] = []
    async with local_backend(on_restart=lambda: restarts.append(1), **limits) as backend:
        events = await asyncio.wait_for(events_of(backend, make_request("a", trouble)), 20)
        assert isinstance(events[-1], Failed)
        assert events[-1].kind is FailureKind.WORKER_DIED
        await until_ready(backend)
        assert restarts == [1]
        assert isinstance((await events_of(backend, make_request("b")))[-1], Finished)
    assert said in caplog.text


async def test_a_worker_that_is_idle_or_slow_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Many times the limit with nothing to say, or a request that gives nothing, is no hang."""
    async with local_backend(hang_seconds=0.6, longest_step_seconds=0.3) as backend:
        await asyncio.sleep(1.5)
        running = asyncio.create_task(events_of(backend, make_request("a", SILENT)))
        await asyncio.sleep(1.5)
        assert backend.is_ready
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert "hangs" not in caplog.text


async def test_loading_is_never_held_to_hang() -> None:
    """Before it serves, only the silence allowed for a start counts."""
    starting = local_backend("--start", "slow", hang_seconds=0.1, longest_step_seconds=0.1)
    async with starting as backend:
        assert backend.is_ready


async def test_totals_go_on_over_a_death() -> None:
    """Counters keep what earlier workers counted; gauges of a dead worker are zero."""
    async with local_backend() as backend:
        await events_of(backend, make_request("a"))
        before = backend.stats()
        assert before.prompt_tokens_total == 3
        await events_of(backend, make_request("b", DIE))
        assert backend.stats().prompt_tokens_total == 3
        assert backend.stats().pool.free == 0
        await until_ready(backend)
        await events_of(backend, make_request("c"))
        assert backend.stats().prompt_tokens_total == 6
        assert backend.stats().pool.free > 0


async def test_a_failed_restart_is_tried_again(tmp_path: Path) -> None:
    """A worker that fails to come back once comes back the next time."""
    mark = tmp_path / "fail"
    async with local_backend("--fail-if", str(mark)) as backend:
        mark.touch()
        await events_of(backend, make_request("a", DIE))
        await until_ready(backend)
        assert not mark.exists()
        assert isinstance((await events_of(backend, make_request("b")))[-1], Finished)


async def test_each_restart_in_a_row_waits_longer(tmp_path: Path) -> None:
    """Delays double up to a bound while workers die young, and begin anew after a steady one."""
    delays: list[float] = []
    clock = [0.0]
    async with local_backend(
        clock=lambda: clock[0], sleep=lambda seconds: no_sleep(delays, seconds)
    ) as backend:
        for age_seconds in (1, 1, 1, 61, 1):
            clock[0] += age_seconds
            await events_of(backend, make_request("a", DIE))
            await until_ready(backend)
    assert delays == [0.01, 0.02, 0.04, 0.01, 0.02]


async def test_restarts_that_fail_wait_longer_within_bounds(tmp_path: Path) -> None:
    """While no worker comes up at all, the wait grows to half a minute and stays there."""
    delays: list[float] = []
    worker = tmp_path / "worker"
    worker.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    worker.chmod(0o700)
    backend = LocalBackend(
        EngineConfig(),
        command=(str(worker), *FAKE[1:]),
        restart_delay_seconds=0.5,
        sleep=lambda seconds: no_sleep(delays, seconds),
    )
    await backend.start()
    worker.unlink()
    await events_of(backend, make_request("a", DIE))
    await until(lambda: len(delays) >= 9)
    await backend.close()
    assert delays[:9] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


async def no_sleep(delays: list[float], seconds: float) -> None:
    delays.append(seconds)
    await asyncio.sleep(0)


async def test_a_frame_over_the_limit_is_not_waited_for() -> None:
    """A worker that announces more than a frame may hold is replaced before it sends it."""
    async with local_backend() as backend:
        last = (await asyncio.wait_for(events_of(backend, make_request("a", HUGE)), 5))[-1]
        assert isinstance(last, Failed)
        assert last.kind is FailureKind.WORKER_DIED
        await until_ready(backend)


async def test_finished_requests_are_not_cancelled() -> None:
    """Streams read to their end send no Cancel; one that is left sends one."""
    async with local_backend() as backend:
        for i in range(0, 240, 40):
            await asyncio.gather(
                *(events_of(backend, make_request(f"r{i + j}", 50)) for j in range(40))
            )
        assert backend.stats().preemptions_total == 0
        async with aclosing(generator(backend, ENDLESS)) as events:
            await anext(events)
        await until(lambda: backend.stats().preemptions_total == 1)


async def test_counters_go_on_when_the_worker_is_replaced() -> None:
    """What a dead worker had counted, reasons of misses too, is added to its successor's."""
    async with local_backend() as backend:
        await leave_early(backend, n_left=1)
        await events_of(backend, make_request("bad", GARBAGE, 50))
        await until_ready(backend)
        await leave_early(backend, n_left=2)
        assert backend.stats().misses == {"diverged": 2}
        assert backend.stats().preemptions_total == 2


async def leave_early(backend: LocalBackend, n_left: int) -> None:
    """Leave a stream, and wait until the worker has counted so many such in all."""
    async with aclosing(generator(backend, ENDLESS)) as events:
        await anext(events)
    await until(lambda: backend.stats().preemptions_total == n_left)


async def test_a_worker_that_talks_nonsense_is_replaced() -> None:
    """A frame that cannot be read costs the worker its place, not the gateway."""
    async with local_backend() as backend:
        last = (await events_of(backend, make_request("a", GARBAGE, 50)))[-1]
        assert isinstance(last, Failed)
        await until_ready(backend)
        assert isinstance((await events_of(backend, make_request("b")))[-1], Finished)


async def test_one_bad_request_fails_alone() -> None:
    """A request that the engine refuses ends by itself."""
    async with local_backend() as backend:
        good, bad = await asyncio.gather(
            events_of(backend, make_request("a")), events_of(backend, make_request("b", BAD))
        )
        assert isinstance(good[-1], Finished)
        assert isinstance(bad[-1], Failed)
        assert bad[-1].kind is FailureKind.INVALID


async def test_a_reader_that_does_not_keep_up_is_cut_off_within_bounds() -> None:
    """A flood waits up to the byte limit, then the request is cancelled; what came is in order."""
    async with local_backend(max_stream_bytes=100_000) as backend:
        async with aclosing(generator(backend, FLOOD)) as events:
            assert isinstance(await anext(events), Started)
            await until(
                lambda: not backend.stats().running
            )  # the engine was told to stop, though nobody reads
            rest = [event async for event in events]
        *output, last = rest
        assert isinstance(last, Failed)
        assert last.kind is FailureKind.CANCELLED
        sizes = [len(event.text) for event in output if isinstance(event, Delta)]
        assert len(sizes) == len(output)
        assert 50_000 < sum(sizes) <= 100_000
        assert isinstance((await events_of(backend, make_request("b")))[-1], Finished)


async def test_leaving_a_silent_request_cancels_it() -> None:
    """Cancelling the task that waits for output ends the request in the worker."""
    async with local_backend() as backend:
        reading = asyncio.create_task(events_of(backend, make_request("a", SILENT)))
        await until(lambda: backend.stats().running)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await until(lambda: not backend.stats().running)


async def test_close_reaps_the_worker_and_leaves_no_task() -> None:
    """After close there is no child process and no task of the backend."""
    before = asyncio.all_tasks()
    async with local_backend() as backend:
        await events_of(backend, make_request("a"))
        assert len(child_processes()) == 1
    assert child_processes() == []
    assert asyncio.all_tasks() == before


def generator(backend: LocalBackend, *token_ids: int) -> Any:
    return backend.generate(make_request("a", *token_ids))


def child_processes() -> list[int]:
    """Return this process's children, zombies included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found.append(int(entry.name))
    return found
