"""Changes of what an engine serves, asked for and answered over the wire."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prefixcache.engine.engine import Engine
from prefixcache.errors import PrefixCacheError
from prefixcache.wire import (
    Change,
    Changed,
    ChangeRefused,
    LoadAdapter,
    Reload,
    ToGateway,
    UnloadAdapter,
)

logger = logging.getLogger(__name__)


class Changes:
    """Makes one change after another and answers each of them once."""

    def __init__(self, engine: Engine, send: Callable[[ToGateway], None]) -> None:
        self._engine = engine
        self._send = send
        self._reload_id: int | None = None  # the reload that waits for requests to end

    def make(self, change: Change) -> None:
        """Make a change and answer it; a reload is answered by `settle`. May take long."""
        try:
            self._apply(change)
        except PrefixCacheError as error:
            self._send(ChangeRefused(change.change_id, str(error)))
        except Exception:  # the edge: whatever a change meets, requests go on
            logger.exception("a change failed")
            self._send(ChangeRefused(change.change_id, "internal error; the worker's log has it"))
        else:
            if not isinstance(change, Reload):
                self._send(Changed(change.change_id, self._engine.info))

    def settle(self) -> None:
        """Answer a reload once the new weights serve. To be called after each step."""
        if self._reload_id is not None and not self._engine.is_reloading:
            self._send(Changed(self._reload_id, self._engine.info))
            self._reload_id = None

    def _apply(self, change: Change) -> None:
        match change:
            case LoadAdapter():
                self._engine.load_adapter(change.name, change.folder)
            case UnloadAdapter():
                self._engine.unload_adapter(change.name)
            case Reload():
                self._engine.reload(drains=change.drains)
                self._reload_id = change.change_id
