"""That nobody runs while somebody waits is told to whoever reads the log."""

from __future__ import annotations

import logging

import pytest

from tests.support.models import Bench, prompt_ids


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_stall_is_logged_once_with_what_the_first_request_needs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not before some seconds, and again only after somebody ran; no word of the prompt."""
    clock = Clock()
    bench = Bench(clock=clock, n_blocks=30)
    bench.submit("r1", prompt_ids(9), 2)
    bench.submit("r2", prompt_ids(9), 2)
    caplog.set_level(logging.ERROR, logger="prefixcache.engine.stalls")
    for n_told in (1, 2):
        bench.engine._scheduler.admits_new = False
        for _ in range(20):
            clock.now += 1
            bench.step()
        assert len(caplog.messages) == n_told
        bench.engine._scheduler.admits_new = True
        bench.step_until(lambda: not bench.engine._scheduler.waiting)
        bench.drain()
        bench.submit("r3", prompt_ids(9), 2)
    assert (
        "2 wait; the first, request r1, needs 3 blocks: 30 are free, 0 cached"
        in (caplog.messages[0])
    )
    assert "request r3" in caplog.messages[1]
    bench.drain()
