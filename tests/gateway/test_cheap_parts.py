"""What is done once for each event or request is done cheaply, and says the same."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from gateway.api.openai_calls import ChatDelta
from gateway.api.openai_replies import (
    ChatChunk,
    ChatChunkChoice,
    ContentFrames,
    Head,
    write_chunk,
)
from gateway.histogram import LoopHistogram
from gateway.ids import RandomIds

BOUNDS = (0.5, 1.0, 2.5)


@given(st.lists(st.sampled_from([0.0, 0.5, 0.75, 1.0, 2.0, 2.5, 3.0, 1e9]), max_size=20))
def test_a_histogram_shows_what_prometheus_own_shows(values: list[float]) -> None:
    """The same lines for the same values, but for the moment of its making."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    cheap = LoopHistogram("seconds", "Of something", buckets=BOUNDS)
    ours.register(cheap)
    known = Histogram("seconds", "Of something", buckets=BOUNDS, registry=theirs)
    for value in values:
        cheap.observe(value)
        known.observe(value)
    lines = [line for line in generate_latest(theirs).splitlines() if b"_created" not in line]
    assert generate_latest(ours).splitlines() == lines


@pytest.mark.parametrize("include_usage", [False, True])
@given(text=st.text(), metadata=st.none() | st.dictionaries(st.text(), st.text(), max_size=2))
def test_content_is_framed_as_any_chunk_is(
    text: str, metadata: dict[str, str] | None, include_usage: bool
) -> None:
    """Whatever a client has put into the rest of a chunk, byte for byte."""
    head = Head(
        id="chatcmpl-1",
        created=7,
        model="content",
        fingerprint="fp_1",
        service_tier=msgspec.UNSET,
        metadata=msgspec.UNSET if metadata is None else metadata | {"content": "content"},
        include_usage=include_usage,
        noise=None,
    )
    chunk = write_chunk(head, ChatChunk, ChatChunkChoice(3, ChatDelta(content=text)))
    assert ContentFrames(head, 3).write(text) == chunk


def test_no_two_ids_are_the_same() -> None:
    """Ids of 32 hexadecimal digits, whatever threads ask for them."""
    ids = RandomIds(os.urandom)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: ids(), range(2000)))
    assert len(set(found)) == 2000
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in found)
