"""What every error of the gateway is, and what a server cannot do at all, or not now."""

from __future__ import annotations

from collections.abc import Mapping

from prefixcache.types import FailureKind

SHOWN_CHARACTERS = 100  # of what a client sent


class GatewayError(Exception):
    """Root of every error that the gateway raises on purpose."""

    param: str | None = None  # the field of the request that is at fault

    @property
    def headers(self) -> Mapping[str, str]:
        """What the answer says beside its body."""
        return {}


class StartError(GatewayError):
    """The server cannot start: its address, its model or its worker; the text says why."""


class BadModelError(StartError):
    """The server cannot start with the model or the engine's settings that it was given."""


class NotReadyError(GatewayError):
    """The model is being loaded, or the worker is being started again."""


class DrainingError(GatewayError):
    """The server is stopping and takes no new requests."""


class ChangeRefusedError(GatewayError):
    """The worker cannot load, unload or reload what it was asked to; all is as it was."""


class NotSupportedError(GatewayError):
    """The backend that serves here cannot do this at all; nothing was done."""


class SlowClientError(GatewayError):
    """The client did not take what it was sent in time, so its connection is cut."""


class GenerationFailedError(GatewayError):
    """The engine ended a request; `kind` says how."""

    def __init__(self, kind: FailureKind, message: str, param: str | None = None) -> None:
        super().__init__(kind, message, param)
        self.kind, self.message, self.param = kind, message, param

    def __str__(self) -> str:
        return self.message
