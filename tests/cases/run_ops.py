"""Runs cache scripts (`*.ops.json`) on the index and prints every step that differs.

    python tests/cases/run_ops.py FILE...

Exit code 0: all as expected; 1: some step differs; 2: wrong usage or a malformed script.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed

from prefixcache.errors import (
    BooksError,
    CacheError,
    ConfigError,
    EmptyPromptError,
    PoolExhaustedError,
    RequestTooLargeError,
)
from prefixcache.index import Lease, Namespace, PrefixCache, Scope, pack

FORMAT = "cache-ops/1"
ADMITTED, WAIT, REJECT = "ok", "wait", "reject"
OUTCOMES = {
    ADMITTED: {ADMITTED},
    WAIT: {WAIT},
    REJECT: {REJECT},
    "wait_or_reject": {WAIT, REJECT},
}
POOL_FIELDS = ("free", "cached", "held")

Op = Mapping[str, Any]


class ScriptError(Exception):
    """A script is not what the format allows."""


@dataclass
class Request:
    """What the script knows by one id."""

    tokens: list[int]
    lease: Lease | None = None  # None: never admitted
    is_running: bool = False


class ScriptRunner:
    """Plays one script. Reuse is by whole blocks and nothing is taken ahead of need."""

    def __init__(self, script: object) -> None:
        if not isinstance(script, dict) or script.get("format", FORMAT) != FORMAT:
            raise ScriptError(f"not a {FORMAT} script")
        self._ops = _list_of(script, "ops", dict)
        try:
            self._cache = PrefixCache(
                pool_blocks=[_integer(script, "pool_blocks")],
                block_size_tokens=_integer(script, "block_size"),
                growth_blocks=0,
                token_exact_reuse=False,
            )
        except ConfigError as error:
            raise ScriptError(str(error)) from error
        self._requests: dict[str, Request] = {}
        self._differences: list[str] = []
        self._step = ""

    def differences(self) -> list[str]:
        """Play the script and return a line for each difference.

        Raises:
            ScriptError: an op is malformed.
        """
        handlers: dict[str, Callable[[Op], None]] = {
            "run": self._run,
            "hold": self._hold,
            "finish": self._finish,
            "abort": self._abort,
            "queue": self._queue,
            "evict": self._evict,
            "bump": self._bump,
            "expect": self._expect,
            "expect_match": self._expect_match,
            "expect_pool": self._expect_pool,
        }
        for number, op in enumerate(self._ops, 1):
            name = op.get("op")
            self._step = " ".join(str(part) for part in (number, name, op.get("id")) if part)
            if name not in handlers:
                raise ScriptError(f"step {self._step}: unknown op")
            handlers[name](op)
            self._check_books()
        return self._differences

    def _differ(self, text: str) -> None:
        self._differences.append(f"step {self._step}: {text}")

    def _check_books(self) -> None:
        try:
            self._cache.check()
        except BooksError as error:
            self._differ(f"the books differ: {error}")

    def _run(self, op: Op) -> None:
        request = self._admit(op)
        if request.is_running:
            self._end(request, _tokens(op, "out", optional=True))

    def _hold(self, op: Op) -> None:
        self._admit(op)

    def _admit(self, op: Op) -> Request:
        expected = op.get("expect", ADMITTED)
        if expected not in OUTCOMES:
            raise ScriptError(f"step {self._step}: unknown expect {expected!r}")
        known = self._requests.get(_id(op))
        if known is not None and known.is_running:
            self._differ("the id is running already")
            return Request([])
        request = self._requests[_id(op)] = Request(_tokens(op, "tokens"))
        outcome = self._try_to_admit(request, namespace_of(op.get("ns")))
        if outcome not in OUTCOMES[expected]:
            self._differ(f"expected {expected}, found {outcome}")
        return request

    def _try_to_admit(self, request: Request, namespace: Namespace) -> str:
        try:
            request.lease = self._cache.acquire(namespace, pack(request.tokens))
        except PoolExhaustedError:
            return WAIT
        except (RequestTooLargeError, EmptyPromptError):
            return REJECT
        request.is_running = True
        return ADMITTED

    def _finish(self, op: Op) -> None:
        out = _tokens(op, "out", optional=True)
        request = self._running(op)
        if request is not None:
            self._end(request, out)

    def _abort(self, op: Op) -> None:
        request = self._running(op)
        if request is not None and request.lease is not None:
            request.is_running = False
            self._cache.release(request.lease)

    def _running(self, op: Op) -> Request | None:
        """Return the running request that an op ends, or None when it is to have no effect."""
        expected = op.get("expect", ADMITTED)
        request = self._requests.get(_id(op))
        if request is not None and request.is_running:
            if expected != ADMITTED:
                self._differ(f"expected {expected}, but it is running")
            return request
        if request is None and expected == ADMITTED:
            self._differ("no request has this id")
        return None

    def _end(self, request: Request, out: list[int]) -> None:
        """Keep what has KV, as far as there is room for it, and let the request go."""
        assert request.lease is not None
        written = request.tokens + out[:-1]  # the last token was never fed
        try:
            self._cache.extend(request.lease, len(written))
        except (PoolExhaustedError, RequestTooLargeError):
            written = written[: request.lease.capacity_tokens]
        self._cache.commit(request.lease, pack(written))
        self._cache.release(request.lease)
        request.is_running = False

    def _queue(self, op: Op) -> None:
        known = self._requests.get(_id(op))
        if known is not None and known.is_running:
            self._differ("the id is running already")
            return
        self._requests[_id(op)] = Request(_tokens(op, "tokens", optional=True))

    def _evict(self, op: Op) -> None:
        self._cache.evict(_integer(op, "blocks"))

    def _bump(self, op: Op) -> None:
        self._cache.invalidate(Scope.namespace(namespace_of(op.get("ns"))))
        self._cache.reclaim()

    def _expect(self, op: Op) -> None:
        low, high = _range(op, "cached_tokens")
        request = self._requests.get(_id(op))
        if request is None or request.lease is None:
            self._differ("the request was never admitted")
        elif not low <= request.lease.cached_tokens <= high:
            found = request.lease.cached_tokens
            self._differ(f"expected {low} to {high} cached tokens, found {found}")

    def _expect_match(self, op: Op) -> None:
        low, high = _range(op, "cached_tokens")
        tokens = pack(_tokens(op, "tokens"))
        found = self._cache.match_length(namespace_of(op.get("ns")), tokens)
        if not low <= found <= high:
            self._differ(f"expected {low} to {high} tokens matched, found {found}")

    def _expect_pool(self, op: Op) -> None:
        counts = self._cache.counts()
        for field in POOL_FIELDS:
            if field in op and getattr(counts, field) != _integer(op, field):
                self._differ(f"expected {op[field]} {field}, found {getattr(counts, field)}")


def namespace_of(ns: object) -> Namespace:
    """Return the namespace that a script means.

    Text other than "default" is a name of its own, equal to no object. An object's fields keep
    their types; one that the index does not know still tells namespaces apart. Null is absent.
    """
    if ns is None or ns == "default":
        return Namespace()
    if isinstance(ns, str):
        return Namespace(kv_format=json.dumps(ns))
    if not isinstance(ns, dict):
        raise ScriptError(f"ns is text or an object, not {ns!r}")
    fields = {name: value for name, value in ns.items() if value is not None}
    known = set(Namespace.__struct_fields__)
    if fields.keys() <= known and all(isinstance(value, str) for value in fields.values()):
        return Namespace(**fields)
    return Namespace(kv_format=json.dumps(fields, sort_keys=True))


def _id(op: Op) -> str:
    if "id" not in op:
        raise ScriptError(f"{op.get('op')} without id")
    return str(op["id"])


def _integer(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ScriptError(f"{name} is an integer, not {value!r}")
    return value


def _list_of(fields: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise ScriptError(f"{name} is a list, not {value!r}")
    return value


def _tokens(op: Op, name: str, *, optional: bool = False) -> list[int]:
    if optional and op.get(name) is None:
        return []
    tokens = _list_of(op, name, int)
    try:
        pack(tokens)
    except CacheError as error:
        raise ScriptError(f"{name}: {error}") from error
    return tokens


def _range(op: Op, name: str) -> tuple[int, int]:
    value = _list_of(op, name, int)
    if len(value) != 2:
        raise ScriptError(f"{name} is [min, max], not {value!r}")
    return value[0], value[1]


def main(arguments: Sequence[str]) -> int:
    """Play the files named in `arguments`, print what differs, and return the exit code."""
    if not arguments:
        print("usage: run_ops.py FILE...", file=sys.stderr)
        return 2
    exit_code = 0
    for name in arguments:
        try:
            differences = ScriptRunner(json.loads(Path(name).read_text("utf-8"))).differences()
        except (OSError, ValueError, ScriptError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            exit_code = 2
            continue
        for line in differences:
            print(f"{name}: {line}")
        exit_code = max(exit_code, 1 if differences else 0)
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
