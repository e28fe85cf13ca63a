"""Changes of an engine, and looks into it, asked for and answered over the wire."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prefixcache.engine.engine import Engine
from prefixcache.errors import PrefixCacheError, WireError
from prefixcache.wire import (
    Answer,
    Change,
    Changed,
    ChangeRefused,
    Done,
    Inspect,
    Inspected,
    Invalidate,
    LoadAdapter,
    PromptRead,
    Publish,
    Reload,
    Retire,
    SetQuotas,
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
        self._publishing: dict[str, int] = {}  # by prompt id: changes that wait for its reading

    def make(self, change: Change) -> None:
        """Make a change and answer it; some are answered by `settle`. May take long."""
        answer: Answer | None
        try:
            answer = self._apply(change)
        except PrefixCacheError as error:
            answer = ChangeRefused(change.change_id, str(error))
        except Exception:  # the edge: whatever a change meets, requests go on
            logger.exception("a change failed")
            answer = ChangeRefused(change.change_id, "internal error; the worker's log has it")
        if answer is not None:
            self._answer(answer)

    def settle(self) -> None:
        """Answer what takes steps, once it is done. To be called after each step."""
        if self._reload_id is not None and not self._engine.is_reloading:
            self._send(Changed(self._reload_id, self._engine.info))
            self._reload_id = None
        self._tell_readings()

    def _tell_readings(self) -> None:
        for reading in self._engine.control.readings():
            change_id = self._publishing.pop(reading.prompt_id)
            if reading.state is None:
                self._send(ChangeRefused(change_id, reading.refusal))
            else:
                self._send(PromptRead(change_id, reading.state))

    def _answer(self, answer: Answer) -> None:
        try:
            self._send(answer)
        except WireError as error:  # too long for a frame
            self._send(ChangeRefused(answer.change_id, str(error)))

    def _apply(self, change: Change) -> Answer | None:
        """Make a change; return its answer, None when it comes later."""
        number = change.change_id
        match change:
            case LoadAdapter(name=name, folder=folder):
                return Changed(number, self._engine.load_adapter(name, folder))
            case UnloadAdapter(name=name):
                return Changed(number, self._engine.unload_adapter(name))
            case Reload(drains=drains):
                self._engine.reload(drains=drains)
                self._reload_id = number
                return None
            case Inspect(max_nodes=max_nodes, tenant=tenant):
                found = self._engine.control.inspect(max_nodes=max_nodes, tenant=tenant)
                return Inspected(number, found)
            case _:
                return self._steer(change)

    def _steer(self, change: Publish | Retire | Invalidate | SetQuotas) -> Answer | None:
        control = self._engine.control
        match change:
            case Publish(publication=publication, stands=stands):
                control.publish(publication, stands=stands)
                self._publishing[publication.prompt_id] = change.change_id
                return None
            case Retire(prompt_id=prompt_id):
                control.retire(prompt_id)
                self._tell_readings()  # somebody may wait for its reading
            case Invalidate(invalidation=invalidation):
                control.invalidate(invalidation)
            case SetQuotas(quotas=quotas):
                control.set_quotas(quotas)
        return Done(change.change_id)
