"""Which host names mean this machine and nothing else."""

from __future__ import annotations

import ipaddress
import re

# host, [IPv6 address], either with a port (RFC 9110, section 7.2); a bare IPv6 address, too
_HOST_HEADER = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::\d*)?", re.ASCII)


def is_loopback(host: str) -> bool:
    """Whether `host` is localhost or a loopback address (127.0.0.0/8, ::1)."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(host_header: str) -> bool:
    """Whether a Host header names this machine as only this machine's own programs would.

    A page from elsewhere can have its own name resolve to 127.0.0.1; a browser then lets it
    talk to us, but the Host header still has that name.
    """
    found = _HOST_HEADER.fullmatch(host_header)
    parts = found.groupdict("") if found else {"six": host_header, "name": ""}
    return is_loopback(parts["six"] or parts["name"])
