"""The judge of a worker that lives: what it takes for a hang, and what it does not."""

from __future__ import annotations

import msgspec
import pytest

from gateway.backends.local import IDLE_STATS
from gateway.backends.watchdog import Watchdog
from prefixcache.wire import Heartbeat, Step

STEP = Step((), IDLE_STATS)
STALLED = Step((), msgspec.structs.replace(IDLE_STATS, waiting=3))
BUSY = Step((), msgspec.structs.replace(IDLE_STATS, waiting=3, running=1))


class Naps:
    """A watchdog whose sleeps take no time; in each it hears the next of some messages."""

    def __init__(self, *heard: Step | Heartbeat | None) -> None:
        self._heard = list(heard)
        self.n_slept = 0
        self.slept_seconds = 0.0
        self.watchdog = Watchdog(silence_seconds=8, step_seconds=100, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.n_slept += 1
        self.slept_seconds += seconds
        message = self._heard.pop(0) if self._heard else None
        if message is not None:
            self.watchdog.heard(message)


async def test_silence_of_the_set_time_is_a_hang() -> None:
    """Counted from the last message on."""
    naps = Naps(None, None, None, STEP)
    assert "8 seconds" in await naps.watchdog.watch()
    assert naps.slept_seconds == 2 * 8


@pytest.mark.parametrize("message", [STEP, Heartbeat(0.0), Heartbeat(99.0)])
async def test_any_message_is_a_sign_of_life(message: Step | Heartbeat) -> None:
    """A step or a heartbeat within each quarter of the time, and the worker is let be."""
    naps = Naps(*[message] * 50)
    await naps.watchdog.watch()
    assert naps.n_slept == 54


async def test_a_step_that_takes_too_long_is_a_hang() -> None:
    """However lively the heartbeats; a step that ended in time is none."""
    naps = Naps(Heartbeat(90.0), STEP, Heartbeat(50.0), Heartbeat(101.0), STEP)
    assert "100 seconds" in await naps.watchdog.watch()
    assert naps.n_slept == 4


async def test_requests_that_wait_for_nobody_are_a_hang() -> None:
    """However lively the steps: for as long as silence may last, somebody waits and none runs."""
    naps = Naps(*[STALLED, STALLED, BUSY] * 9, *[STALLED] * 9)
    assert "3 requests wait" in await naps.watchdog.watch()
    assert naps.n_slept == 27 + 4


@pytest.mark.parametrize("message", [STEP, BUSY, Heartbeat(0.0)])
async def test_who_waits_while_others_run_or_a_model_is_loaded_is_no_hang(
    message: Step | Heartbeat,
) -> None:
    """A worker that goes on in between, or does other work than steps, is let be."""
    naps = Naps(*[STALLED, STALLED, STALLED, message] * 9)
    await naps.watchdog.watch()
    assert naps.n_slept == 36 + 4
