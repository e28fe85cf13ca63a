"""A worker that loads no model and misbehaves on demand: the double for crash tests.

Run as `python -m tests.support.fake_worker --socket PATH`. It answers a prompt with the prompt's
ids written as numbers, one for each step; the first id of a prompt may ask for trouble instead.
It remembers what is published and which quotas are set, and shows that; it caches nothing. It
counts the Cancel frames that it gets where others count preemptions.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from prefixcache import wire
from prefixcache.control import Inspection, Publication, PublicationState, TenantQuota, TenantShown
from prefixcache.index import unpack
from prefixcache.types import (
    Delta,
    EngineStats,
    Event,
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    GenerationRequest,
    ModelInfo,
    PoolCounts,
    RequestId,
    Started,
    Usage,
)

DIE, FLOOD, GARBAGE, SILENT, ENDLESS, BAD = range(1, 7)  # first ids that ask for trouble
HUGE, FREEZE, STUCK = 666, 667, 668
EXIT_CODE = 13
POOL_BLOCKS = 8
VOCABULARY = 10_000

Connection = socket.socket


class Running:
    """One request that is being answered."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.ids = unpack(request.token_ids)
        self.n_given = 0

    def next_event(self) -> Event | None:
        """Return what this request gives in the next step."""
        request_id = self.request.request_id
        trouble = self.ids[0]
        if trouble == SILENT:
            return None
        if trouble == BAD:
            return Failed(request_id, FailureKind.INVALID, "a bad request fails alone")
        if trouble == FLOOD:
            return Delta(request_id, "flood " * 2000, (trouble,))
        if trouble != ENDLESS and self.n_given == self.n_wanted:
            usage = Usage(len(self.ids), 0, self.n_given)
            return Finished(request_id, FinishReason.LENGTH, usage)
        token_id = self.ids[self.n_given % len(self.ids)]
        self.n_given += 1
        return Delta(request_id, f"{token_id} ", (token_id,))

    @property
    def n_wanted(self) -> int:
        return min(len(self.ids), self.request.sampling.max_tokens)


class FakeEngine:
    """Steps all running requests, and counts."""

    def __init__(self) -> None:
        self._running: dict[RequestId, Running] = {}
        self.n_cancels = 0
        self.stats = EngineStats(
            pool=PoolCounts(free=POOL_BLOCKS, cached=0, held=0),
            running=0,
            waiting=0,
            steps_total=0,
            prompt_tokens_total=0,
            cached_tokens_total=0,
            computed_tokens_total=0,
            output_tokens_total=0,
            evicted_blocks_total=0,
            preemptions_total=0,
        )

    def submit(self, request: GenerationRequest) -> list[Event]:
        running = self._running[request.request_id] = Running(request)
        return [Started(request.request_id, len(running.ids), 0)]

    def cancel(self, request_id: RequestId) -> list[Event]:
        self.n_cancels += 1
        if self._running.pop(request_id, None) is None:
            return []
        return [Failed(request_id, FailureKind.CANCELLED, "cancelled")]

    def step(self) -> list[Event]:
        events = []
        for request_id, running in list(self._running.items()):
            event = running.next_event()
            if event is None:
                continue
            events.append(event)
            if isinstance(event, (Finished, Failed)):
                del self._running[request_id]
        return events

    def account(self, events: list[Event]) -> None:
        held = min(len(self._running), POOL_BLOCKS)
        outputs = sum(len(event.token_ids) for event in events if isinstance(event, Delta))
        prompts = sum(event.prompt_tokens for event in events if isinstance(event, Started))
        self.stats = msgspec.structs.replace(
            self.stats,
            pool=PoolCounts(free=POOL_BLOCKS - held, cached=0, held=held),
            running=len(self._running),
            steps_total=self.stats.steps_total + 1,
            prompt_tokens_total=self.stats.prompt_tokens_total + prompts,
            output_tokens_total=self.stats.output_tokens_total + outputs,
            preemptions_total=self.n_cancels,
            misses={"diverged": self.n_cancels},
        )


class FakeControl:
    """What an operator has asked for."""

    def __init__(self) -> None:
        self.published: dict[str, Publication] = {}
        self.quotas: dict[str, TenantQuota] = {}

    def answer(self, change: wire.Change) -> wire.Answer | None:
        number = change.change_id
        match change:
            case wire.Publish(publication=publication):
                self.published[publication.prompt_id] = publication
                if unpack(publication.token_ids)[0] == SILENT:
                    return None
                return wire.PromptRead(number, state_of(publication))
            case wire.Retire(prompt_id=prompt_id):
                self.published.pop(prompt_id, None)
            case wire.SetQuotas(quotas=quotas):
                self.quotas = quotas
            case wire.Inspect():
                return wire.Inspected(number, self.shown())
            case _:
                pass
        return wire.Done(number)

    def shown(self) -> Inspection:
        return Inspection(
            trees=[],
            is_complete=True,
            tenants=[tenant_of(name, quota) for name, quota in self.quotas.items()],
            publications=[state_of(each) for each in self.published.values()],
            pool=PoolCounts(free=POOL_BLOCKS, cached=0, held=0),
            longest_free_run=POOL_BLOCKS,
            block_size_tokens=16,
            kv_bytes_per_token=1,
        )


def state_of(publication: Publication) -> PublicationState:
    n_tokens = len(publication.token_ids) // 4
    return PublicationState(
        prompt_id=publication.prompt_id, n_tokens=n_tokens, cached_tokens=n_tokens // 16 * 16
    )


def tenant_of(name: str, quota: TenantQuota) -> TenantShown:
    return TenantShown(
        tenant=name,
        cached_tokens=0,
        held_tokens=0,
        retained_tokens=0,
        reserved_tokens=quota.reserved_tokens,
        max_tokens=quota.max_tokens or 0,
        requests_total=0,
        prompt_tokens_total=0,
        hit_tokens_total=0,
        evicted_tokens_total=0,
        misses={},
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument(
        "--start", default="ok", choices=("ok", "slow", "hang", "fail", "bad", "exit", "version")
    )
    parser.add_argument("--fail-if", help="fail to start while this file is there; remove it")
    options = parser.parse_args()
    if options.start == "exit":
        os._exit(EXIT_CODE)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(options.socket)
    first = read_message(connection)
    assert isinstance(first, wire.Start)
    print("this line must not reach the gateway's standard output", flush=True)
    start(connection, first, how=how_to_start(options.start, options.fail_if))
    serve(connection, first.heartbeat_seconds)


def how_to_start(asked: str, fail_if: str | None) -> str:
    if fail_if is not None and Path(fail_if).exists():
        Path(fail_if).unlink()
        return "fail"
    return asked


def start(connection: Connection, message: wire.Start, *, how: str) -> None:
    connection.sendall(wire.encode(wire.Progress("loading nothing")))
    if how == "slow":
        time.sleep(1)
    if how == "hang":
        time.sleep(600)
    if how in ("fail", "bad"):
        failed = wire.StartFailed("no such model", is_bad_input=how == "bad")
        connection.sendall(wire.encode(failed))
        os._exit(1)
    if how == "version":
        connection.sendall(wire.HEADER.pack(wire.VERSION + 1, 0))
        time.sleep(600)
    model = ModelInfo(
        name="fake",
        folder=message.config.model or ".",
        vocab_size=VOCABULARY,
        max_model_tokens=100_000,
        eos_token_ids=(),
        kv_bytes_per_token=1,
        pool_blocks=POOL_BLOCKS,
        block_size_tokens=16,
        dtype="none",
        weights="none",
        device="none",
        load_id=str(os.getpid()),
    )
    connection.sendall(wire.encode(wire.Ready(model)))


class Pulse:
    """Says every so often that this process lives, and since when it has been stuck."""

    def __init__(self, connection: Connection, every_seconds: float) -> None:
        self._connection = connection
        self._every_seconds = every_seconds
        self._stuck_since: float | None = None
        self.writing = threading.Lock()
        threading.Thread(target=self._beat, daemon=True).start()

    def be_stuck(self) -> None:
        self._stuck_since = time.monotonic()
        time.sleep(600)

    def _beat(self) -> None:
        while True:
            time.sleep(self._every_seconds)
            began = self._stuck_since
            seconds = 0.0 if began is None else time.monotonic() - began
            with self.writing:
                self._connection.sendall(wire.encode(wire.Heartbeat(seconds)))


def serve(connection: Connection, heartbeat_seconds: float) -> None:
    inbox: SimpleQueue[wire.ToWorker] = SimpleQueue()
    threading.Thread(target=read_into, args=(connection, inbox), daemon=True).start()
    engine, control, pulse = FakeEngine(), FakeControl(), Pulse(connection, heartbeat_seconds)
    while True:
        events: list[Event] = []
        for message in waiting_messages(inbox, wait=engine.stats.running == 0):
            match message:
                case wire.Stop():
                    return
                case wire.Submit(request):
                    cause_trouble(connection, request, pulse)
                    events += engine.submit(request)
                case wire.Cancel(request_id):
                    events += engine.cancel(request_id)
                case wire.Start():
                    pass
                case _:
                    answer = control.answer(message)
                    if answer is not None:
                        with pulse.writing:
                            connection.sendall(wire.encode(answer))
        events += engine.step()
        engine.account(events)
        with pulse.writing:
            connection.sendall(wire.encode(wire.Step(tuple(events), engine.stats)))
        time.sleep(0.001)


def cause_trouble(connection: Connection, request: GenerationRequest, pulse: Pulse) -> None:
    match unpack(request.token_ids)[0]:
        case trouble if trouble == DIE:
            os._exit(EXIT_CODE)
        case trouble if trouble == FREEZE:
            os.kill(os.getpid(), signal.SIGSTOP)
        case trouble if trouble == STUCK:
            pulse.be_stuck()
        case trouble if trouble == GARBAGE:
            connection.sendall(wire.HEADER.pack(wire.VERSION, 3) + b"\xc1\xc1\xc1")
        case trouble if trouble == HUGE:
            connection.sendall(wire.HEADER.pack(wire.VERSION, wire.MAX_FRAME_BYTES + 1))
            time.sleep(600)


def waiting_messages(inbox: SimpleQueue[wire.ToWorker], *, wait: bool) -> list[wire.ToWorker]:
    messages = [inbox.get()] if wait else []
    while True:
        try:
            messages.append(inbox.get_nowait())
        except Empty:
            return messages


def read_into(connection: Connection, inbox: SimpleQueue[wire.ToWorker]) -> None:
    while (message := read_message(connection)) is not None:
        inbox.put(message)
    inbox.put(wire.Stop())


def read_message(connection: Connection) -> wire.ToWorker | None:
    header = read_exactly(connection, wire.HEADER.size)
    payload = header and read_exactly(connection, wire.payload_length(header))
    return wire.decode_to_worker(payload) if payload else None


def read_exactly(connection: Connection, n_bytes: int) -> bytes:
    found = b""
    while len(found) < n_bytes:
        part = connection.recv(n_bytes - len(found))
        if not part:
            return b""
        found += part
    return found


if __name__ == "__main__":
    main()
