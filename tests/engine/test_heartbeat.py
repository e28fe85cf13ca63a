"""Signs of life, as rare as a configuration may ask for."""

from __future__ import annotations

import math
import threading

from prefixcache.engine.heartbeat import Pulse
from prefixcache.wire import Heartbeat


def test_an_interval_may_be_for_ever() -> None:
    """One that no clock of the system can hold is waited for all the same."""
    sent: list[Heartbeat] = []
    with Pulse(sent.append, every_seconds=math.inf).beating():
        beating = next(each for each in threading.enumerate() if each.name == "heartbeat")
        beating.join(0.1)
        assert beating.is_alive()
        assert not sent
