"""Errors of the library. Each says what was asked, what was found and what to change."""

from __future__ import annotations

from pathlib import Path


class PrefixCacheError(Exception):
    """Root of every error that this package raises on purpose."""


class ConfigError(PrefixCacheError):
    """A setting has a value that cannot work."""

    def __init__(self, setting: str, value: object, reason: str) -> None:
        super().__init__(setting, value, reason)
        self.setting, self.value, self.reason = setting, value, reason

    def __str__(self) -> str:
        return f"{self.setting} = {self.value!r}: {self.reason}"


class CacheError(PrefixCacheError):
    """Root of the index's errors."""


class PoolExhaustedError(CacheError):
    """Every block that is not free is held by a running request.

    `by_quota`: or its tenant's requests hold as much as they may, and others' ends are no help.
    """

    def __init__(self, needed: int, free: int, held: int, by_quota: bool = False) -> None:
        super().__init__(needed, free, held, by_quota)
        self.needed, self.free, self.held, self.by_quota = needed, free, held, by_quota

    def __str__(self) -> str:
        if self.by_quota:
            return f"need {self.needed} KV blocks; the tenant's quota leaves {self.free} now"
        return (
            f"need {self.needed} KV blocks; {self.free} are free and {self.held} are held by"
            " running requests. Lower max_running_requests or raise kv_memory_bytes."
        )


class RequestTooLargeError(CacheError):
    """The request cannot fit even in an empty pool."""

    def __init__(self, needed: int, pool_blocks: int, block_size_tokens: int) -> None:
        super().__init__(needed, pool_blocks, block_size_tokens)
        self.needed, self.pool_blocks = needed, pool_blocks
        self.block_size_tokens = block_size_tokens

    def __str__(self) -> str:
        return (
            f"the request needs {self.needed} KV blocks, the pool has {self.pool_blocks}"
            f" ({self.pool_blocks * self.block_size_tokens} tokens)."
            " Shorten the prompt or raise kv_memory_bytes."
        )


class TokenIdError(CacheError):
    """A token id is not an unsigned 32-bit integer."""

    def __init__(self, found: object) -> None:
        super().__init__(found)
        self.found = found

    def __str__(self) -> str:
        return f"token ids are integers from 0 to {2**32 - 1}; found {self.found!r}"


class EmptyPromptError(CacheError):
    """A prompt has no tokens, so there is nothing to compute an answer from."""

    def __str__(self) -> str:
        return "the prompt has no tokens; send at least one"


class LeaseError(CacheError):
    """A lease was used in a way that it does not allow."""

    def __init__(self, lease_id: int, reason: str) -> None:
        super().__init__(lease_id, reason)
        self.lease_id, self.reason = lease_id, reason

    def __str__(self) -> str:
        return f"lease {self.lease_id}: {self.reason}"


class PromptRetiredError(CacheError):
    """A version of a published prompt is shared no more."""

    def __init__(self, name: str, version: int) -> None:
        super().__init__(name, version)
        self.name, self.version = name, version

    def __str__(self) -> str:
        return f"version {self.version} of prompt {self.name!r} was retired; publish it again"


class HookError(CacheError):
    """A hook of the cache called it back to change it."""

    def __str__(self) -> str:
        return (
            "the cache was called by one of its own hooks (copy_block, an observer, the lower tier)"
            " in the middle of a change. Note what is to be done and do it after the call."
        )


class BooksError(CacheError):
    """`check()` found that the index's counts do not agree. Always a bug of ours."""


class EngineError(PrefixCacheError):
    """Root of the engine's errors."""


class ModelError(EngineError):
    """The model cannot be found, read or served."""


class UnsupportedModelError(ModelError):
    """The model's architecture cannot work with a paged prefix cache."""

    def __init__(self, architecture: str, reason: str, served: tuple[str, ...] = ()) -> None:
        super().__init__(architecture, reason, served)
        self.architecture, self.reason = architecture, reason
        self.served = served  # families that can be, where another model is the way out

    def __str__(self) -> str:
        others = f"; these families can be: {', '.join(self.served)}" if self.served else ""
        return f"{self.architecture} cannot be served: {self.reason}{others}"


class AdapterError(EngineError):
    """An adapter cannot be loaded, or there is none of that name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"adapter {self.name!r}: {self.reason}"


class PublicationError(EngineError):
    """A prompt cannot be published; the text says why."""


class GrammarError(EngineError):
    """A grammar cannot be used; the text is the library's reason."""


class TemplateError(PrefixCacheError):
    """The chat template refused the messages, or there is none; the text says which."""

    def __init__(self, reason: str, param: str | None = None) -> None:
        super().__init__(reason, param)
        self.reason = reason
        self.param = param  # what is at fault, as in messages[0].role, where one thing is

    def __str__(self) -> str:
        return self.reason if self.param is None else f"{self.param}: {self.reason}"


class TextError(PrefixCacheError):
    """A text is no Unicode: it holds half of a surrogate pair, so no bytes can spell it."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position  # in characters

    def __str__(self) -> str:
        return f"the text holds half of a surrogate pair at character {self.position}; send Unicode"


class PromptTooLongError(PrefixCacheError):
    """A prompt has so many characters that no way to write it in tokens could be short enough."""

    def __init__(self, found_characters: int, max_characters: int) -> None:
        super().__init__(found_characters, max_characters)
        self.found_characters, self.max_characters = found_characters, max_characters

    def __str__(self) -> str:
        return (
            f"the prompt has {self.found_characters} characters; {self.max_characters} are the"
            " most that can fit. Shorten it."
        )


class TierError(PrefixCacheError):
    """A tier beyond the device cannot be used for now; the text says what to do about it."""


class WireError(PrefixCacheError):
    """A frame between gateway and worker is malformed, too large or of another version."""


class TraceError(PrefixCacheError):
    """A trace cannot be read."""

    def __init__(self, path: Path, place: str, reason: str) -> None:
        super().__init__(path, place, reason)
        self.path, self.place, self.reason = path, place, reason

    def __str__(self) -> str:
        return f"{self.path}, {self.place}: {self.reason}"
