"""Commands to a server and its replies; loaded only where it is used (the extra `remote`)."""

from __future__ import annotations

from collections.abc import Sequence

import redis
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, RedisError, TimeoutError
from redis.retry import Retry

from prefixcache.errors import ConfigError, TierError

Command = tuple[str | bytes | memoryview | int, ...]
Reply = bytes | int | list[bytes | None] | None

_READ_BYTES = 1 << 18  # are taken from a socket at once
_OTHERS_KEY = "WRONGTYPE"


class Client:
    """One server. What it says and what the library says never reaches a log: it may be secret."""

    def __init__(self, url: str, address: str, *, timeout_seconds: float) -> None:
        """Connect later, with the first command.

        `address`: the URL without what is secret in it.

        Raises:
            ConfigError: it is no URL of a server.
        """
        self._address = address
        self._timeout_seconds = timeout_seconds
        try:
            self._redis = redis.Redis.from_url(
                url,
                socket_timeout=timeout_seconds,
                socket_connect_timeout=timeout_seconds,
                socket_read_size=_READ_BYTES,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        except (ValueError, TypeError):
            reason = "is no URL such as redis://HOST:6379/0, rediss://HOST:6379/0 or unix:///PATH"
            raise ConfigError("remote", address, reason) from None

    def run(self, commands: Sequence[Command]) -> list[Reply]:
        """Return the replies, after one trip.

        A key that somebody else uses for something else has no value. Raises TierError.
        """
        if not commands:
            return []
        try:
            pipeline = self._redis.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            replies = pipeline.execute(raise_on_error=False)
        except RedisError as error:
            raise TierError(self._text(error)) from None
        except (OSError, ValueError, TypeError) as error:  # of a URL's options, when they are used
            raise TierError(self._text(error)) from None
        return [self._accepted(reply) for reply in replies]

    def close(self) -> None:
        """Let go of the connections."""
        self._redis.close()

    def _accepted(self, reply: object) -> Reply:
        if isinstance(reply, Exception):
            if str(reply).startswith(_OTHERS_KEY):
                return None
            raise TierError(self._text(reply)) from None
        return reply  # type: ignore[return-value]  # whoever uses it looks what it is

    def _text(self, error: Exception) -> str:
        if isinstance(error, OutOfMemoryError):
            hint = "it is full: raise its maxmemory, or set maxmemory-policy allkeys-lru"
        elif isinstance(error, TimeoutError):
            hint = f"it did not answer in {self._timeout_seconds} s"
        else:
            hint = f"{type(error).__name__}: see that it runs and that it lets this user in"
        return f"the remote tier at {self._address} cannot be used: {hint}"
