"""The flags for what eviction policies can be told, of every command that runs some."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from prefixcache.index.policies import PolicyOptions

_Command = TypeVar("_Command", bound=Callable[..., object])
_DEFAULTS = PolicyOptions()


def policy_flags(command: _Command) -> _Command:
    """Give a command `idle_ttl_seconds` and `protected_share`."""
    shared = click.option(
        "--protected-share",
        type=click.FloatRange(0, 1, min_open=True),
        default=_DEFAULTS.protected_share,
        show_default=True,
        help="Of the listed blocks, for slru and cost-aware.",
    )
    idle = click.option(
        "--idle-ttl",
        "idle_ttl_seconds",
        type=click.FloatRange(min=0, min_open=True),
        default=_DEFAULTS.idle_ttl_seconds,
        show_default=True,
        help="Seconds, for ttl.",
    )
    return idle(shared(command))
