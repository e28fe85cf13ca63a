"""The table of errors."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from gateway.errors import (
    ContextLengthError,
    GenerationFailedError,
    InvalidRequestError,
    NotReadyError,
    envelope,
    verdict,
)
from prefixcache.errors import TemplateError
from prefixcache.types import FailureKind


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


@pytest.mark.parametrize("kind", [FailureKind.OVERLOADED, FailureKind.WORKER_DIED])
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
