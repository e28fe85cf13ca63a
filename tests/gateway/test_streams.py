"""What waits for a slow reader is bounded, scores included."""

from __future__ import annotations

import pytest

from gateway.backends.streams import EventStream
from prefixcache.types import Delta, Event, Failed, PromptScores, RequestId, TokenScore

ID = RequestId("a")
SCORES = (TokenScore(1, -0.5, ((1, -0.5), (2, -1.5))),) * 20


@pytest.mark.parametrize(
    "event", [PromptScores(ID, SCORES), Delta(ID, "x", (1,), SCORES)], ids=["prompt", "output"]
)
async def test_scores_count_as_output(event: Event) -> None:
    """Scores that nobody reads end the stream at its limit; what was taken in is still read."""
    stream = EventStream(ID, limit_bytes=20_000)
    taken = 0
    while stream.put(event):
        taken += 1
        assert taken < 10, "the scores weigh nothing"
    assert taken >= 2
    assert [await stream.get() for _ in range(taken)] == [event] * taken
    assert isinstance(await stream.get(), Failed)
    assert stream.is_drained
