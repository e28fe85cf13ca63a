"""Calls out of the cache, in the middle of its work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

from prefixcache.errors import HookError

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)


class Hooks:
    """Runs what others have given the cache to call.

    The books do not balance in that moment, so a hook that calls the cache to change it is
    refused. What an observer or a lower tier raises is logged and has no effect: it comes too
    late to undo anything.
    """

    __slots__ = ("is_running",)

    def __init__(self) -> None:
        self.is_running = False

    def run(self, hook: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `hook` returns; what it raises goes through."""
        self.is_running = True
        try:
            return hook(*args, **kwargs)
        finally:
            self.is_running = False

    def tell(self, hook: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return what `hook` returns, or None when it raises."""
        try:
            return self.run(hook, *args, **kwargs)
        except Exception:
            _log.exception("a hook of the prefix cache failed")
            return None

    def refuse(self) -> NoReturn:
        """Raise HookError: the cache is in the middle of a change."""
        raise HookError
