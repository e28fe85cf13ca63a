"""The product's own server as a process, for tests that talk to it from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True)
class Server:
    """A running `prefixcache serve`."""

    url: str
    process: subprocess.Popen[str]


@contextmanager
def running_server(
    arguments: Sequence[str], log: IO[bytes] | None = None, env: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run `prefixcache serve` on a free port; it must end well on SIGTERM.

    Args:
        log: takes its standard error; None: ours does.
        env: variables beside our own.
    """
    command = [sys.executable, "-m", "gateway.cli", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**os.environ, **(env or {})},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready "), "the server ended before it was ready"
        yield Server(line.removeprefix("ready ").strip(), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert process.stdout.read() == "", "standard output holds one line alone"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
