"""Names of things that are kept here, or not, or not any more."""

from __future__ import annotations

from gateway.errors.base import SHOWN_CHARACTERS, GatewayError


class ResponseNotFoundError(GatewayError):
    """The tenant has no such response, or has it no more."""

    def __init__(self, response_id: str) -> None:
        super().__init__(response_id)
        self.response_id = response_id

    def __str__(self) -> str:
        return f"there is no response {self.response_id[:SHOWN_CHARACTERS]!r} of yours, or no more"


class PreviousResponseNotFoundError(ResponseNotFoundError):
    """The response that is to be gone on from is not kept; send the whole conversation instead."""

    param = "previous_response_id"


class CachedContentNotFoundError(GatewayError):
    """The tenant keeps no cached content of that name, or not any more."""

    param = "cachedContent"

    def __init__(self, asked: str) -> None:
        super().__init__(asked)
        self.asked = asked

    def __str__(self) -> str:
        shown = self.asked[:SHOWN_CHARACTERS]
        return f"there is no cached content {shown!r}; it may have expired. Create it again."


class TooManyCachedContentsError(GatewayError):
    """The tenant keeps as many cached contents as it may."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.limit} cached contents are kept already; delete one or wait until it expires"


class PromptNotFoundError(GatewayError):
    """No such prompt is published, or not to this tenant; which of the two is not told."""

    param = "prompt"

    def __init__(self, name: str, version: int | None = None) -> None:
        super().__init__(name, version)
        self.name, self.version = name, version

    def __str__(self) -> str:
        version = "" if self.version is None else f" with a version {self.version}"
        return f"there is no published prompt {self.name[:SHOWN_CHARACTERS]!r}{version}"


class RetiredVersionError(GatewayError):
    """The version of a published prompt is retired; another may be current."""

    param = "prompt"

    def __init__(self, name: str, version: int, current: int | None) -> None:
        super().__init__(name, version, current)
        self.name, self.version, self.current = name, version, current

    def __str__(self) -> str:
        current = "none is" if self.current is None else f"version {self.current} is"
        return f"version {self.version} of the prompt {self.name!r} is retired; {current} current"


class PromptConflictError(GatewayError):
    """A version is to be published that is not above the last one of its name."""

    param = "version"

    def __init__(self, name: str, version: int, last: int) -> None:
        super().__init__(name, version, last)
        self.name, self.version, self.last = name, version, last

    def __str__(self) -> str:
        return (
            f"version {self.version} of {self.name!r} cannot be published: {self.last} was, and"
            " versions only go up. Take a higher one, or leave it out."
        )


class UnknownTenantError(GatewayError):
    """No tenant of that name is configured, and nothing is cached for one."""

    param = "name"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        shown = self.name[:SHOWN_CHARACTERS]
        return f"no tenant {shown!r} is configured, and nothing is cached for one"
