"""Which process answers at a local address."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

from gateway.client.streaming import BenchError
from gateway.hosts import is_loopback


@dataclass(frozen=True, slots=True)
class Listener:
    """The process that listens on a port: its id is unique together with its start."""

    pid: int
    started_at: float  # seconds since the epoch
    command: str

    def descends_from(self, pid: int) -> bool:
        """Whether it is the process `pid` or one that this has started."""
        try:
            parents = psutil.Process(self.pid).parents()
        except psutil.Error:
            return False
        return pid == self.pid or pid in {parent.pid for parent in parents}


def listener_at(url: str) -> Listener | None:
    """Return the process that listens at a loopback `url`; None for other hosts, or if hidden.

    Of a process and its children that share the port, the process is named.

    Raises:
        BenchError: nothing listens there, or processes that have nothing to do with each other.
    """
    address = urlsplit(url)
    host = address.hostname or ""
    if not is_loopback(host):
        return None
    found = [
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == (address.port or 80)
        and _answers_for(host, connection.laddr.ip)
    ]
    if not found:
        raise BenchError(f"nothing listens at {url}")
    return _head([_described(pid) for pid in sorted({pid for pid in found if pid})], url)


def _answers_for(host: str, bound: str) -> bool:
    """Whether a socket bound to `bound` takes connections to `host`: a name may mean any."""
    address = ipaddress.ip_address(bound)
    return host.lower() == "localhost" or address.is_unspecified or bound == host


def _described(pid: int) -> Listener:
    try:
        process = psutil.Process(pid)
        return Listener(pid, process.create_time(), " ".join(process.cmdline()))
    except psutil.Error as error:
        raise BenchError(f"process {pid} cannot be looked at: {error}") from error


def _head(listeners: list[Listener], url: str) -> Listener | None:
    """Return the one that the others descend from."""
    for candidate in listeners:
        if all(other.descends_from(candidate.pid) for other in listeners):
            return candidate
    if listeners:
        pids = ", ".join(str(listener.pid) for listener in listeners)
        raise BenchError(f"several servers listen at {url}: processes {pids}")
    return None
