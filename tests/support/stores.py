"""A real server of Valkey or Redis, from the system's package."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

SERVERS = ("valkey-server", "redis-server")
PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1")
PASSWORD = "store-password"


@dataclass(frozen=True)
class Store:
    """One that runs."""

    socket_path: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """As gateways name it."""
        return f"unix://:{PASSWORD}@{self.socket_path}"

    @property
    def tcp_url(self) -> str:
        """The same over TCP."""
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        """Return a connection of the test's own."""
        return redis.Redis.from_url(self.url)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let it take connections and answer nothing."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


def fetched(folder: Path) -> tuple[str, Mapping[str, str]] | None:
    """Unpack Debian's package into a folder, without root; None: it cannot be had."""
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        return None
    try:
        subprocess.run(
            [apt, "download", *PACKAGES], cwd=folder, check=True, capture_output=True, timeout=60
        )
        for package in folder.glob("*.deb"):
            subprocess.run([dpkg, "-x", package, folder], check=True, timeout=60)
    except subprocess.SubprocessError:
        return None
    libraries = {str(path.parent) for path in folder.glob("usr/lib/**/*.so.*")}
    return str(folder / "usr/bin/redis-server"), {"LD_LIBRARY_PATH": ":".join(sorted(libraries))}


@contextmanager
def store(folder: Path) -> Iterator[Store]:
    """Run one that keeps nothing on the disk; skip the test where there is none."""
    installed = next(filter(None, map(shutil.which, SERVERS)), None)
    found = (installed, {}) if installed else fetched(folder)
    if found is None:
        pytest.skip("neither Valkey nor Redis is installed, and Debian's package cannot be fetched")
    binary, env = found
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    path = folder / "s"
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", str(path)]
    command += ["--save", "", "--requirepass", PASSWORD, "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **env})
    try:
        running = Store(path, port, process)
        _wait_for(running)
        yield running
    finally:
        process.kill()
        process.wait()


def _wait_for(running: Store) -> None:
    for _ in range(200):
        assert running.process.poll() is None, "the server has ended"
        try:
            running.client().ping()
        except (redis.ConnectionError, redis.BusyLoadingError):
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the server does not answer")
