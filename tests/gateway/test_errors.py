"""The table of errors."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest
from aiohttp import web

import gateway.errors
import prefixcache.errors
from gateway.errors import (
    BodyTooLargeError,
    ContextLengthError,
    GenerationFailedError,
    InvalidRequestError,
    NotReadyError,
)
from gateway.verdicts import envelope, verdict
from prefixcache.errors import TemplateError
from prefixcache.types import FailureKind

ARGUMENTS: dict[str, tuple[object, ...]] = {  # of those that take other than one text
    "AdapterError": ("formal", "why"),
    "PromptConflictError": ("greeting", 1, 2),
    "RetiredVersionError": ("greeting", 1, 2),
    "PromptRetiredError": ("greeting", 2),
    "TraceError": (Path("trace.jsonl"), "line 7", "no timestamp"),
    "BodyTooLargeError": (100, 101),
    "ConfigError": ("port", -1, "too low"),
    "ContextLengthError": (9, 8, "prompt", "characters"),
    "GenerationFailedError": (FailureKind.INTERNAL, "why"),
    "InvalidRequestError": ("why", "n"),
    "LeaseError": (3, "why"),
    "ModelNotFoundError": ("asked", "served"),
    "OverloadedError": (64,),
    "PoolExhaustedError": (3, 1, 2),
    "PromptTooLongError": (9, 8),
    "OverLimitError": (9, 8, "answers"),
    "RateLimitedError": ("tokens", 60, 1.5),
    "RequestTooLargeError": (3, 2, 16),
    "TenantBusyError": ("requests running", 2),
    "TextError": (7,),
    "UnsupportedModelError": ("Mamba", "why"),
}


def is_error(found: object) -> TypeGuard[type[Exception]]:
    return isinstance(found, type) and issubclass(found, Exception)


def all_errors() -> Iterator[type[Exception]]:
    for module in (gateway.errors, prefixcache.errors):
        for found in vars(module).values():
            if getattr(found, "__module__", "") == module.__name__ and is_error(found):
                yield found


@pytest.mark.parametrize("kind", list(all_errors()))
def test_every_error_survives_pickling(kind: type[Exception]) -> None:
    """A copy made in another process says and holds the same."""
    error = kind(*ARGUMENTS.get(kind.__name__, ("why",)))
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(copy) is kind
    assert (str(copy), copy.args, vars(copy)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize("kind", FailureKind)
def test_every_kind_of_failure_has_a_verdict(kind: FailureKind) -> None:
    """Whatever the engine reports has a status and a code."""
    judged = verdict(GenerationFailedError(kind, "why"))
    assert 400 <= judged.status < 600
    assert judged.code


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequestError("why"), 400),
        (TemplateError("why"), 400),
        (ContextLengthError(9, 8, "prompt"), 400),
        (GenerationFailedError(FailureKind.OVERLOADED, "why"), 429),
        (NotReadyError("why"), 503),
        (web.HTTPNotFound(), 404),
        (ValueError("why"), 500),
    ],
)
def test_errors_have_their_status(error: Exception, status: int) -> None:
    """A client's mistake is a 4xx, trouble of ours a 5xx."""
    assert verdict(error).status == status


@pytest.mark.parametrize(
    "kind", [FailureKind.OVERLOADED, FailureKind.WORKER_DIED, FailureKind.QUEUE_TIMEOUT]
)
def test_what_passes_says_when_to_come_back(kind: FailureKind) -> None:
    """Trouble that goes away by itself carries Retry-After."""
    assert verdict(GenerationFailedError(kind, "why")).retry_after_seconds


def test_the_envelope_has_openais_four_fields() -> None:
    """The message says what is wrong, the param which field is."""
    error = json.loads(envelope(ContextLengthError(9, 8, "prompt")))["error"]
    assert error["param"] == "prompt"
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"
    assert "9 tokens" in error["message"]


def test_the_text_of_an_unexpected_error_stays_inside() -> None:
    """What we did not raise on purpose is not shown to clients."""
    assert b"secret" not in envelope(ValueError("secret"))


def test_any_message_can_be_written() -> None:
    """Half characters in a message do not break the answer about them."""
    assert json.loads(envelope(InvalidRequestError("half \ud83d")))["error"]["message"] == "half ?"


def test_a_template_error_names_the_messages() -> None:
    """What the chat template refuses is the fault of `messages`."""
    error = json.loads(envelope(TemplateError("system goes first")))["error"]
    assert (error["message"], error["param"]) == ("system goes first", "messages")


@pytest.mark.parametrize(("declared", "said"), [(900, "has 900 bytes"), (None, "has more")])
def test_a_body_too_large_says_how_large_it_was(declared: int | None, said: str) -> None:
    """The limit is told, and the length where the client declared one."""
    message = str(BodyTooLargeError(800, declared))
    assert said in message
    assert "800 bytes" in message
