"""`prefixcache replay --against URL`: a trace, sent to a server."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import urlsplit

import aiohttp
import click

from gateway.bench_serve import read_base
from gateway.client.identity import Identity, identify
from gateway.client.live import Answered, LiveRun, MakePrompt, live_session
from gateway.client.live_prompts import WordPrompts, own_prompt
from gateway.client.live_report import LiveResult, Rows
from gateway.client.live_server import OWN_KIND, ServerCache, learn, server_cache
from prefixcache.index.policies import PolicyOptions, make_policy
from prefixcache.traces import TokenCache, Trace, TraceRequest
from prefixcache.traces.reading import ReadReport
from prefixcache.traces.report import skipped_lines

INTERRUPTED = 128 + signal.SIGINT
_SEEDS = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """What is asked of a replay against a server."""

    against: str
    model: str | None
    at_a_time: int | None  # None: at the trace's times
    key_env: str | None  # the variable with the server's key
    limit: int | None
    max_prompt_tokens: int | None
    server_block_tokens: int | None
    server_capacity_blocks: int | None
    policy: str
    policy_options: PolicyOptions
    request_seconds: float
    seed: int | None  # None: prompts that were never sent before

    def key(self, env: Mapping[str, str]) -> str | None:
        """Return the server's key. Raises click.UsageError where the variable is not set."""
        if self.key_env is None:
            return None
        if not (key := env.get(self.key_env)):
            raise click.UsageError(f"--api-key-env names {self.key_env}, which is not set")
        return key


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The requests of a trace that are to be sent, and what became of the other rows."""

    requests: list[TraceRequest]
    report: ReadReport
    beyond_limit: int
    too_long: int
    empty: int


async def replayed_against(
    trace: Trace, options: LiveOptions, say: Callable[[str], None]
) -> LiveResult:
    """Read all of a trace, send it to a server, and set what comes beside what was foretold.

    Rows that cannot be used are told before anything is sent. When this is cancelled while
    requests are sent, the result is of those that were answered until then.

    Raises:
        TraceError: the trace cannot be read.
        BenchError: there is no such server, or its words cannot be counted.
        click.UsageError: the key's variable is not set, or nothing is left to send.
    """
    key, url = options.key(os.environ), read_base(options.against)
    chosen = _choose(trace, options)
    for line in skipped_lines(trace.name, chosen.report):
        say(line)
    if not chosen.requests:
        raise click.UsageError(f"{trace.name}: none of its requests is to be sent")
    seed = secrets.randbelow(_SEEDS) if options.seed is None else options.seed
    async with live_session(key, options.request_seconds) as session:
        identity = await identify(session, url, model=options.model, takes_any=True)
        say(
            f"{_shown(url)} is {identity.kind.name} (version {identity.version}),"
            f" model {identity.model}"
        )
        make_prompt, before = await _prompts(session, url, identity, chosen.requests, seed)
        run = LiveRun(session, url, identity, make_prompt, at_a_time=options.at_a_time)
        await run.run(chosen.requests)
        cache = await server_cache(  # an engine tells its pool when it has run
            session,
            url,
            block_tokens=options.server_block_tokens,
            capacity_blocks=options.server_capacity_blocks,
        )
    result = LiveResult(
        about=_about(trace, options, url, identity, seed),
        rows=_rows(chosen, run.n_sent),
        requests=chosen.requests,
        outcomes=run.outcomes,
        predicted={},
        cache=cache,
        seconds=run.seconds,
        is_interrupted=run.is_interrupted,
    )
    lookup = _cache(options, cache, identity)
    for packed in before:
        lookup.serve(packed, output_tokens=1)
    predicted = _predicted(chosen.requests, result.answered, make_prompt, lookup)
    return replace(result, predicted=predicted)


def _choose(trace: Trace, options: LiveOptions) -> _Chosen:
    reading, limit = trace.read(), options.limit
    requests: list[TraceRequest] = []
    beyond_limit = too_long = empty = 0
    for request in reading:
        if request.input_tokens < 1:
            empty += 1
        elif options.max_prompt_tokens and request.input_tokens > options.max_prompt_tokens:
            too_long += 1
        elif limit is not None and len(requests) >= limit:
            beyond_limit += 1
        else:
            requests.append(request)
    return _Chosen(_from_0(requests), reading.report, beyond_limit, too_long, empty)


def _from_0(requests: list[TraceRequest]) -> list[TraceRequest]:
    """Return the requests with the first one, which rows may have been left out before, at 0."""
    first = requests[0].timestamp_seconds if requests else 0.0
    return [
        each.with_ids(each.timestamp_seconds - first, each.hash_ids, each.block_tokens)
        for each in requests
    ]


async def _prompts(
    session: aiohttp.ClientSession,
    url: str,
    identity: Identity,
    requests: Sequence[TraceRequest],
    seed: int,
) -> tuple[MakePrompt, list[bytes]]:
    """Return what makes prompts, and the tokens of those that the server was asked before."""
    if requests[0].prompt is not None:
        return (lambda request, _: own_prompt(request)), []
    learned = await learn(session, url, identity)
    words = WordPrompts(learned.vocabulary, seed)
    return words.prompt, [words.probe(text, n_tokens) for text, n_tokens in learned.probes]


def _cache(options: LiveOptions, cache: ServerCache, identity: Identity) -> TokenCache:
    return TokenCache(
        block_tokens=cache.block_tokens,
        capacity_blocks=cache.capacity_blocks,
        token_exact=identity.kind.name == OWN_KIND,
        policy=partial(make_policy, options.policy, options.policy_options),
    )


def _predicted(
    requests: Sequence[TraceRequest],
    answered: Sequence[tuple[int, Answered]],
    make_prompt: MakePrompt,
    cache: TokenCache,
) -> dict[int, int]:
    """Return by request what was to be cached, had they come one after another as sent."""
    return {
        number: cache.serve(
            make_prompt(requests[number], number).tokens,
            output_tokens=answer.completion_tokens,
            now_seconds=answer.sent_at,
        )
        for number, answer in answered
    }


def _rows(chosen: _Chosen, n_sent: int) -> Rows:
    report = chosen.report
    return Rows(
        read=report.rows_read,
        unusable=report.rows_skipped,
        beyond_limit=chosen.beyond_limit,
        too_long=chosen.too_long,
        empty=chosen.empty,
        sent=n_sent,
        not_sent=len(chosen.requests) - n_sent,
    )


def _about(
    trace: Trace, options: LiveOptions, url: str, identity: Identity, seed: int
) -> dict[str, object]:
    timing: dict[str, object] = {"requests_at_a_time": options.at_a_time}
    if options.at_a_time is None:
        timing = {"speed": trace.pacing.speed, "max_gap_seconds": trace.pacing.max_gap_seconds}
    return {
        "trace": trace.name,
        "format": trace.format.name,
        "server": {
            "url": _shown(url),
            "kind": identity.kind.name,
            "version": identity.version,
            "model": identity.model,
            "request_fields": dict(identity.kind.extra),
        },
        "timing": timing,
        "policy": options.policy,
        "limit": options.limit,
        "max_prompt_tokens": options.max_prompt_tokens,
        "seed": None if trace.format.has_text else seed,
        "prompts": "the trace's own texts" if trace.format.has_text else "words by block id",
        "tokens_of_text": _tokenizer(trace),
    }


def _tokenizer(trace: Trace) -> str | None:
    if not trace.format.has_text:
        return None
    return "of the given tokenizer" if trace.options.encoder else "stand-in: not the server's"


def _shown(url: str) -> str:
    """Return a URL without what may be a password in it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
