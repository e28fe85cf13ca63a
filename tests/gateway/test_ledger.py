"""One account of a call's tokens."""

from __future__ import annotations

from gateway.ledger import Ledger
from prefixcache.types import (
    Delta,
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    RequestId,
    Started,
    Usage,
)

ID = RequestId("r")


def test_prompts_count_once_and_answers_each() -> None:
    """Of two prompts with two choices: prompt, cached and written of the first choices."""
    ledger = Ledger(n_requests=4, choices_per_prompt=2)
    usages = [Usage(40, 0, 3, 32), Usage(40, 32, 5, 0), Usage(20, 16, 1, 0), Usage(20, 16, 2, 0)]
    for index, usage in enumerate(usages):
        ledger.observe(index, Started(ID, usage.prompt_tokens, usage.cached_tokens))
        ledger.observe(index, Delta(ID, "", (1,)))
        ledger.observe(index, Finished(ID, FinishReason.STOP, usage))
    assert ledger.usage() == Usage(60, 16, 11, 32)


def test_hits_name_their_tier() -> None:
    """Once for each prompt, as its first admitted choice found them, whatever came after."""
    ledger = Ledger(n_requests=4, choices_per_prompt=2)
    ledger.observe(1, Started(ID, 40, 36, {"host": 16, "disk": 4}))
    ledger.observe(1, Finished(ID, FinishReason.STOP, Usage(40, 36, 1)))
    ledger.observe(0, Failed(ID, FailureKind.CANCELLED, ""))
    for index in (2, 3):
        ledger.observe(index, Started(ID, 40, 8, {"disk": 8}))
    assert ledger.tier_tokens() == {"host": 16, "disk": 12}
    assert Ledger(n_requests=1, choices_per_prompt=1).tier_tokens() == {}


def test_failures_count_what_they_used() -> None:
    """Where the end says nothing, what came before it stands."""
    ledger = Ledger(n_requests=2, choices_per_prompt=1)
    ledger.observe(0, Failed(ID, FailureKind.CANCELLED, "", Usage(40, 16, 2, 8)))
    ledger.observe(1, Started(ID, 10, 4))
    ledger.observe(1, Delta(ID, "", (1, 2)))
    ledger.observe(1, Failed(ID, FailureKind.WORKER_DIED, ""))
    assert ledger.usage() == Usage(50, 20, 4, 8)
