"""What the processors did during a measurement: a sitting is only as good as it was quiet."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Work:
    """Processor time between two moments, on this machine."""

    seconds: float
    server_cpu_seconds: float | None  # of the server with all it started; None: unseen
    other_cores: float  # busy on average with neither the server nor this client


class WorkMeter:
    """Counts from its making on.

    Args:
        pid: the server's process; None where it is elsewhere or unseen.
    """

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._began = self._now()

    def read(self) -> Work:
        """Return what was done since the meter was made."""
        before, now = self._began, self._now()
        seconds, busy, client, server = (
            end - start for start, end in zip(before, now, strict=True)
        )
        others = max(busy - client - server, 0.0)
        return Work(seconds, None if self._pid is None else server, others / max(seconds, 1e-9))

    def _now(self) -> tuple[float, float, float, float]:
        """Return the clock and the processor seconds of all, of this client and of the server."""
        return time.perf_counter(), _busy_seconds(), time.process_time(), _of_tree(self._pid)


def _busy_seconds() -> float:
    times = psutil.cpu_times()  # which fields there are depends on the system
    names = ("user", "nice", "system", "irq", "softirq")
    return sum(float(getattr(times, name, 0.0)) for name in names)


def _of_tree(pid: int | None) -> float:
    if pid is None:
        return 0.0
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0.0
    return sum(map(_of_process, tree))


def _of_process(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system
