"""The worker's loop in this process: what it does between two steps, and within one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from torch import Tensor

from prefixcache.engine.inbox import Inbox
from prefixcache.engine.plan import Step as Plan
from prefixcache.engine.worker import Connection, Worker, serve, start_reading
from prefixcache.index import pack
from prefixcache.types import (
    Delta,
    Event,
    Failed,
    FailureKind,
    Finished,
    GenerationRequest,
    RequestId,
    SamplingParams,
    Started,
)
from prefixcache.wire import (
    HEADER,
    Cancel,
    Heartbeat,
    Start,
    StartFailed,
    Step,
    Stop,
    Submit,
    ToGateway,
    ToWorker,
    decode_to_gateway,
    encode,
    payload_length,
)
from tests.support.models import Bench, prompt_ids


class CountedConnection(Connection):
    """A connection that tells how many frames its reader has passed on."""

    def __init__(self, stream: socket.socket) -> None:
        super().__init__(stream)
        self._n_asked = 0
        self._changed = threading.Condition()

    def receive(self) -> ToWorker | None:
        with self._changed:
            self._n_asked += 1
            self._changed.notify_all()
        return super().receive()

    def wait_until_read(self, n_frames: int) -> None:
        """Return once `n_frames` frames are in the inbox: the reader asks for the next one."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._n_asked > n_frames, timeout=30)


def submission(name: str, n_prompt: int = 9, n_tokens: int = 4) -> Submit:
    return Submit(
        GenerationRequest(
            request_id=RequestId(name),
            token_ids=pack(prompt_ids(n_prompt, seed=3)),
            sampling=SamplingParams(max_tokens=n_tokens),
        )
    )


class LoopBench:
    """A tiny engine in a worker's loop, on a thread; the test is the gateway."""

    def __init__(
        self,
        max_step_tokens: int,
        *,
        heartbeat_seconds: float = 5.0,
        inbox: Inbox | None = None,
        **settings: Any,
    ) -> None:
        self._heartbeat_seconds = heartbeat_seconds
        self._inbox = inbox
        self.bench = Bench(max_step_tokens=max_step_tokens, **settings)
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(30)
        self._theirs = theirs
        self.connection = CountedConnection(theirs)
        self._n_sent = 0
        self.thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # as the process does
            if self._inbox is not None:
                start_reading(self.connection, self._inbox)
            Worker(
                self.connection,
                self.bench.engine,
                self._inbox,
                heartbeat_seconds=self._heartbeat_seconds,
            ).run()

    def send(self, message: ToWorker) -> None:
        self._n_sent += 1
        self._ours.sendall(encode(message))

    def send_raw(self, data: bytes) -> None:
        self._ours.sendall(data)

    def send_and_wait(self, message: ToWorker) -> None:
        """Send, and return once the worker's reader has it."""
        self.send(message)
        self.connection.wait_until_read(self._n_sent)

    def submit(self, name: str, n_prompt: int = 9, n_tokens: int = 4) -> None:
        self.send(submission(name, n_prompt, n_tokens))

    def during_forward(self, number: int, action: Callable[[], None]) -> None:
        """Do `action` while the model computes its forward of that number, from 1."""
        forward = self.bench.model.forward

        def watched(step: Plan) -> Tensor:
            logits = forward(step)
            if len(self.bench.model.steps) == number:
                action()
            return logits

        self.bench.model.forward = watched  # type: ignore[method-assign]

    def step(self) -> Step:
        while isinstance(message := self.receive(), Heartbeat):
            pass
        assert isinstance(message, Step)
        return message

    def receive(self) -> ToGateway:
        return decode_to_gateway(self._read(payload_length(self._read(HEADER.size))))

    def events(self, name: str) -> list[Event]:
        """Return a request's events up to its end."""
        found: list[Event] = []
        while not found or not isinstance(found[-1], Finished | Failed):
            found += [event for event in self.step().events if event.request_id == name]
        return found

    def _read(self, n_bytes: int) -> bytes:
        data = self._ours.recv(n_bytes, socket.MSG_WAITALL)
        assert len(data) == n_bytes, "the worker closed"
        return data

    def close(self) -> None:
        self._ours.close()
        if self.thread.ident is not None:
            self.thread.join(timeout=30)
        self._theirs.close()
        assert not self.thread.is_alive()


@pytest.fixture
def loop() -> Iterator[LoopBench]:
    bench = LoopBench(max_step_tokens=8)
    try:
        yield bench
    finally:
        bench.close()


class FiveIdleSteps:
    """Idle work that goes on at once until five steps of it are done."""

    n_done = 0

    @property
    def seconds_to_next_look(self) -> float | None:
        return 0.0 if self.n_done < 5 else None

    def note_work(self) -> None:
        pass

    def work(self) -> None:
        self.n_done += 1


def test_little_idle_steps_are_told_of_once(
    loop: LoopBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway hears of the last one, and then of the next request."""
    idle = FiveIdleSteps()
    monkeypatch.setattr(loop.bench.engine, "_idle", idle)
    loop.thread.start()
    loop.submit("a")
    loop.events("a")
    assert loop.step().events == ()
    assert idle.n_done == 5
    loop.submit("b")
    assert loop.step().events
    loop.events("b")


@pytest.mark.parametrize(("n_prompt", "forward"), [(8, 1), (40, 3), (40, 5)])
def test_a_cancel_during_a_forward_wins_over_its_token(
    loop: LoopBench, n_prompt: int, forward: int
) -> None:
    """A client gone while a chunk is computed, the last one too, gets nothing from it."""
    loop.during_forward(forward, lambda: loop.send_and_wait(Cancel(RequestId("r"))))
    loop.submit("r", n_prompt)
    loop.thread.start()
    events = loop.events("r")
    assert not [event for event in events if isinstance(event, Delta)]
    last = events[-1]
    assert isinstance(last, Failed)
    assert last.kind is FailureKind.CANCELLED
    assert last.usage is not None
    assert last.usage.output_tokens == 0
    assert len(loop.bench.model.steps) == forward
    assert loop.bench.n_held == 0


def test_a_request_that_comes_during_a_forward_joins_the_next_step(loop: LoopBench) -> None:
    """Nobody waits for the end of another's answer to be taken in."""
    loop.during_forward(1, lambda: loop.send_and_wait(submission("late")))
    loop.submit("early", n_prompt=4, n_tokens=40)
    loop.thread.start()
    steps = [loop.step().events for _ in range(2)]
    started = [[e.request_id for e in events if isinstance(e, Started)] for events in steps]
    assert started == [["early"], ["late"]]
    assert isinstance(loop.events("early")[-1], Finished)


def test_an_idle_worker_sleeps_and_wakes(loop: LoopBench) -> None:
    """With nothing to do it takes no steps; a cancel of nobody brings no event."""
    loop.thread.start()
    loop.send(Cancel(RequestId("nobody")))
    assert loop.step().events == ()
    assert loop.bench.model.steps == []
    for name in ("one", "two"):
        loop.submit(name)
        assert isinstance(loop.events(name)[-1], Finished)
    loop.send(Start(loop.bench.config))  # a second one is ignored
    assert loop.step().events == ()


def test_stop_ends_the_loop_with_requests_in_flight(loop: LoopBench) -> None:
    """Stop comes through during a forward, and no further step is taken."""
    loop.during_forward(2, lambda: loop.send_and_wait(Stop()))
    loop.submit("r", n_tokens=400)
    loop.thread.start()
    loop.thread.join(timeout=30)
    assert not loop.thread.is_alive()
    assert len(loop.bench.model.steps) == 2


def test_a_malformed_frame_ends_the_loop(loop: LoopBench, caplog: pytest.LogCaptureFixture) -> None:
    """A gateway that cannot be understood is as good as gone, and the log says so."""
    loop.thread.start()
    loop.send_raw(b"\x09\x00\x00\x00\x01x")
    loop.thread.join(timeout=30)
    assert not loop.thread.is_alive()
    assert "version 9" in caplog.text


def test_a_first_frame_that_cannot_be_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A gateway of another version is told apart from a crash of ours: status 1, and a line."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"\x09\x00\x00\x00\x01x")
        assert serve(Connection(theirs), {}) == 1
        reply = decode_to_gateway(ours.recv(1000)[HEADER.size :])
    assert "version 9" in caplog.text
    assert isinstance(reply, StartFailed)
    assert "version 9" in reply.message


@pytest.mark.parametrize("message", [Stop(), submission("early")])
def test_a_first_frame_that_is_no_start_is_refused(message: ToWorker) -> None:
    """The gateway is told what it sent."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode(message))
        assert serve(Connection(theirs), {}) == 1
        reply = decode_to_gateway(ours.recv(1000)[HEADER.size :])
    assert isinstance(reply, StartFailed)
    assert type(message).__name__ in reply.message


def test_a_gateway_that_goes_without_a_word_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The connection ends before the first frame: status 0, and nothing in the log."""
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        assert serve(Connection(theirs), {}) == 0
    assert caplog.text == ""


def assert_set(event: threading.Event) -> None:
    assert event.wait(30)


def test_a_worker_lives_while_a_step_runs() -> None:
    """Heartbeats come in the middle of a step, with the time that it has taken until then."""
    loop = LoopBench(max_step_tokens=64, heartbeat_seconds=0.01)
    go_on = threading.Event()
    try:
        loop.during_forward(1, lambda: assert_set(go_on))
        loop.submit("r")
        loop.thread.start()
        beats: list[float] = []
        while len(beats) < 4:
            message = loop.receive()
            assert isinstance(message, Heartbeat)  # the step's own report is not there yet
            if message.step_seconds:
                beats.append(message.step_seconds)
        assert beats == sorted(set(beats))
        go_on.set()
        assert isinstance(loop.events("r")[-1], Finished)
        while not isinstance(message := loop.receive(), Heartbeat) or message.step_seconds:
            pass  # idle again, it still beats
    finally:
        go_on.set()
        loop.close()


def test_frames_push_back_while_a_step_runs_and_cancels_come_through() -> None:
    """A flood during a forward waits in the socket; a cancel behind it counts for that forward."""
    inbox = Inbox(limit_bytes=20_000)
    loop = LoopBench(max_step_tokens=64, inbox=inbox, max_waiting_requests=1)
    most_bytes: list[int] = []

    def flood() -> None:
        for number in range(400):
            loop.send(submission(f"flood{number}", n_prompt=500))
        loop.send(Cancel(RequestId("r")))

    flooding = threading.Thread(target=flood)

    def start_flood() -> None:
        flooding.start()
        flooding.join(0.3)  # time for a reader without a bound to read it all
        assert flooding.is_alive()
        most_bytes.append(inbox.n_bytes)

    loop.during_forward(1, start_flood)
    loop.submit("r")
    try:
        loop.thread.start()
        events = loop.events("r")
        assert not [event for event in events if isinstance(event, Delta)]
        assert isinstance(events[-1], Failed)
        assert 0 < most_bytes[0] <= 20_000
    finally:
        flooding.join(30)
        loop.close()


def test_an_idle_worker_drops_what_is_overdue() -> None:
    """With the ttl policy, cached prefixes go although no request comes; the gateway is told."""
    loop = LoopBench(max_step_tokens=64, eviction_policy="ttl", idle_ttl_seconds=0.4)
    try:
        loop.submit("r", n_prompt=20)
        loop.thread.start()
        loop.events("r")
        while loop.step().stats.pool.cached:
            pass
        assert loop.bench.matchable(prompt_ids(20, seed=3)) == 0
    finally:
        loop.close()
