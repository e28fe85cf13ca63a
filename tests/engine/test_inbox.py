"""Messages between the thread that reads frames and the loop that steps the engine."""

from __future__ import annotations

import threading

from prefixcache.engine.inbox import Inbox
from prefixcache.types import (
    GenerationRequest,
    Grammar,
    GrammarKind,
    RequestId,
    SamplingParams,
)
from prefixcache.wire import Cancel, Submit, ToWorker

R = RequestId("r")


def cancel(number: int) -> Cancel:
    return Cancel(RequestId(f"r{number}"))


class CountedInbox(Inbox):
    """An inbox that counts how often a thread waited for more."""

    n_waits = 0

    def wait(self, seconds: float | None) -> None:
        self.n_waits += 1
        super().wait(seconds)


def test_taking_from_an_inbox_that_was_not_full_waits_for_nothing() -> None:
    """A step is not held up for messages that may come."""
    inbox = CountedInbox()
    taken: list[ToWorker] = []
    for number in range(300):
        inbox.put(cancel(number))
        inbox.take_into(taken.append)
    assert taken == [cancel(number) for number in range(300)]
    assert inbox.n_waits == 0


def test_a_message_larger_than_the_inbox_has_room_when_it_is_alone() -> None:
    """Otherwise nothing would ever go on."""
    inbox = Inbox(limit_bytes=1)
    taken: list[ToWorker] = []
    inbox.put(cancel(1))
    putting = threading.Thread(target=inbox.put, args=(cancel(2),))
    putting.start()
    inbox.take_into(taken.append)
    putting.join(10)
    assert not putting.is_alive()
    inbox.take_into(taken.append)
    assert taken == [cancel(1), cancel(2)]


def test_whatever_clients_can_make_long_counts() -> None:
    """A grammar, stop strings and biases weigh what they hold, as a prompt does."""
    for fields in (
        {"grammar": Grammar(GrammarKind.REGEX, "a" * 10_000)},
        {"stop": ("a" * 10_000,)},
        {"logit_bias": tuple((token, 1.0) for token in range(1000))},
        {"stop_token_ids": tuple(range(2000))},
    ):
        inbox = Inbox()
        sampling = SamplingParams(**fields)
        inbox.put(Submit(GenerationRequest(request_id=R, token_ids=b"", sampling=sampling)))
        assert inbox.n_bytes > 8000
