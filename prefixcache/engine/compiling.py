"""Compiling grammars beside the engine, and the requests that wait for it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from prefixcache.engine.grammar import GrammarVocabulary, Matcher
from prefixcache.engine.sequence import Sequence
from prefixcache.errors import GrammarError
from prefixcache.text import Tokenizer
from prefixcache.types import Grammar, ModelInfo, RequestId

_AT_ONCE = 2  # compilations; more only take time from the model
_STACK_BYTES = 64 * 2**20  # the library's parsers are recursive; only what is used is memory
_STACK_LOCK = threading.Lock()  # the size of new stacks is the whole process's

Compile = Callable[[Grammar], Matcher]


class GrammarCompiler:
    """Compiles each grammar once, in threads, and keeps the latest ones."""

    def __init__(self, compile_one: Compile | None, *, max_kept: int, max_bytes: int) -> None:
        """Compile with `compile_one`; None where there is no tokenizer, and so no request.

        Kept are at most `max_kept` grammars, and as many as take `max_bytes`, as one estimates.
        """
        self._compile_one = compile_one
        self._max_kept = max_kept
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Grammar, Future[Matcher]] = OrderedDict()
        self._lock = threading.Lock()  # for what threads share:
        self._due: dict[Future[Matcher], Grammar] = {}  # not begun yet, the oldest first
        self._n_threads = 0

    def compile(self, grammar: Grammar) -> Future[Matcher]:
        """Return what will be the grammar's matcher, to be copied, or its GrammarError."""
        future = self._kept.pop(grammar, None)
        self._make_room(0 if future is None else _estimated_bytes(future))
        if future is None:
            future = Future()
            self._start(grammar, future)
        self._kept[grammar] = future
        return future

    def give_up(self, grammar: Grammar, future: Future[Matcher]) -> None:
        """Do not compile a grammar that nobody waits for, if that has not begun."""
        with self._lock:
            if self._due.pop(future, None) is None:
                return
        if self._kept.get(grammar) is future:
            del self._kept[grammar]

    def _make_room(self, new_bytes: int) -> None:
        """Give up the grammars that were asked for the longest ago; who waits for one has it."""
        n_bytes = new_bytes + sum(map(_estimated_bytes, self._kept.values()))
        while self._kept and (len(self._kept) >= self._max_kept or n_bytes > self._max_bytes):
            _, future = self._kept.popitem(last=False)
            n_bytes -= _estimated_bytes(future)

    def _start(self, grammar: Grammar, future: Future[Matcher]) -> None:
        with self._lock:
            self._due[future] = grammar
            if self._n_threads >= _AT_ONCE:
                return
            self._n_threads += 1
        with _STACK_LOCK:
            before = threading.stack_size(_STACK_BYTES)
            try:
                threading.Thread(target=self._run, name="grammar", daemon=True).start()
            finally:
                threading.stack_size(before)

    def _run(self) -> None:
        """Compile what is due, until nothing is."""
        while (due := self._next()) is not None:
            grammar, future = due
            try:
                assert self._compile_one is not None
                matcher = self._compile_one(grammar)
            except BaseException as error:  # a thread's edge: whoever waits is told
                future.set_exception(error)
            else:
                future.set_result(matcher)

    def _next(self) -> tuple[Grammar, Future[Matcher]] | None:
        with self._lock:
            for future, grammar in self._due.items():
                del self._due[future]
                return grammar, future
            self._n_threads -= 1
            return None


def _estimated_bytes(future: Future[Matcher]) -> int:
    """Return what a grammar takes; one that is not compiled, or that cannot be, is nothing yet."""
    if not future.done() or future.exception() is not None:
        return 0
    return future.result().estimated_bytes


class ModelGrammars:
    """Compiles grammars for one model; the first one waits for the vocabulary to be spelled out."""

    def __init__(self, tokenizer: Tokenizer, info: ModelInfo) -> None:
        self._tokenizer = tokenizer
        self._info = info
        self._vocabulary: GrammarVocabulary | None = None
        self._lock = threading.Lock()

    def __call__(self, grammar: Grammar) -> Matcher:
        """Return the grammar's matcher. Safe from many threads. Raises GrammarError."""
        with self._lock:
            if self._vocabulary is None:
                info = self._info
                self._vocabulary = GrammarVocabulary(
                    self._tokenizer, info.vocab_size, info.eos_token_ids
                )
        return Matcher.of(grammar, self._vocabulary)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request whose grammar is being compiled."""

    sequence: Sequence
    grammar: Grammar
    matcher: Future[Matcher]
    deadline: float  # of the engine's clock, in seconds


@dataclass(frozen=True, slots=True)
class Compiled:
    """A request that waits no more: its sequence with a matcher, or why it has none."""

    sequence: Sequence
    trouble: str | None = None


class CompilingRequests:
    """Requests that wait for their grammars. They hold nothing and keep nobody else waiting."""

    def __init__(self, compiler: GrammarCompiler, *, limit_seconds: float) -> None:
        self._compiler = compiler
        self._limit_seconds = limit_seconds
        self._waiting: dict[RequestId, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._waiting

    def add(self, sequence: Sequence, grammar: Grammar, now: float) -> None:
        """Have the grammar of a request compiled; it waits from `now` on, in seconds."""
        self._waiting[sequence.request.request_id] = Waiting(
            sequence, grammar, self._compiler.compile(grammar), now + self._limit_seconds
        )

    def drop(self, request_id: RequestId) -> bool:
        """End a request; False when it does not wait here."""
        each = self._waiting.pop(request_id, None)
        if each is None:
            return False
        self._end(each)
        return True

    def pause(self, seconds: float) -> None:
        """Return when some grammar is compiled, but after `seconds` at the latest."""
        wait([each.matcher for each in self._waiting.values()], seconds, FIRST_COMPLETED)

    def take(self, now: float) -> Iterator[Compiled]:
        """Yield the requests that wait no more, in their order of arrival."""
        for request_id, each in list(self._waiting.items()):
            if not each.matcher.done() and now < each.deadline:
                continue
            del self._waiting[request_id]
            trouble = self._trouble(each)
            if trouble is None:
                each.sequence.sampler.matcher = each.matcher.result().copy()
            else:
                self._end(each)
            yield Compiled(each.sequence, trouble)

    def _end(self, each: Waiting) -> None:
        each.sequence.has_ended = True
        if all(other.matcher is not each.matcher for other in self._waiting.values()):
            self._compiler.give_up(each.grammar, each.matcher)

    def _trouble(self, each: Waiting) -> str | None:
        if not each.matcher.done():
            return (
                f"the grammar could not be compiled within {self._limit_seconds:g} seconds;"
                " make it smaller"
            )
        error = each.matcher.exception()
        if error is None:
            return None
        reason = str(error) if isinstance(error, GrammarError) else "the compiler failed"
        return f"the grammar cannot be used: {reason}"
