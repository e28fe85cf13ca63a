"""Requests that cannot be read, or not be answered as they are."""

from __future__ import annotations

from gateway.errors.base import GatewayError


class InvalidRequestError(GatewayError):
    """A field of the request, or the body as a whole, cannot be used."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, param)
        self.message, self.param = message, param

    def __str__(self) -> str:
        return self.message


class UnsupportedFieldError(InvalidRequestError):
    """The field is known and would change the answer, but it is not built yet."""

    def __init__(self, param: str) -> None:
        super().__init__(f"{param} is not supported yet; leave it out", param)
        self.args = (param,)  # what a copy is made from


class ModelNotFoundError(GatewayError):
    """The request names a model that is not served here."""

    param = "model"

    def __init__(self, asked: str, *served: str) -> None:
        super().__init__(asked, *served)
        self.asked, self.served = asked, served

    def __str__(self) -> str:
        names, verb = map(repr, self.served), "is" if len(self.served) == 1 else "are"
        return f"the model {self.asked!r} is not served here; {', '.join(names)} {verb}"


class ContextLengthError(GatewayError):
    """The prompt leaves no room for a single output token."""

    def __init__(self, found: int, max_model_tokens: int, param: str, unit: str = "tokens") -> None:
        super().__init__(found, max_model_tokens, param, unit)
        self.found, self.unit = found, unit  # characters: more than the tokens could ever hold
        self.max_model_tokens, self.param = max_model_tokens, param

    def __str__(self) -> str:
        return (
            f"the prompt has {self.found} {self.unit}; this model takes {self.max_model_tokens}"
            " tokens of prompt and output together. Shorten the prompt."
        )


class BodyTooLargeError(GatewayError):
    """The request's body is longer than the server reads."""

    def __init__(self, limit_bytes: int, declared_bytes: int | None = None) -> None:
        super().__init__(limit_bytes, declared_bytes)
        self.limit_bytes, self.declared_bytes = limit_bytes, declared_bytes

    def __str__(self) -> str:
        found = "more" if self.declared_bytes is None else f"{self.declared_bytes} bytes"
        return f"the body has {found}; this server reads at most {self.limit_bytes} bytes of one"


class BodyTimeoutError(GatewayError):
    """The request's body did not arrive in time."""
