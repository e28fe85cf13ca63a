"""Does a tenant's wait tell what another one sent? Measured, and held to an equivalence bound."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field

import aiohttp
from aiohttp import hdrs

from gateway.client.prompts import PromptMaker, Vocabulary, learn_vocabulary
from gateway.client.streaming import BenchError, stream_completion

_LEAST_HIT = 16  # tokens: one block
_WARM_UPS = 3  # pairs that are not counted
_RESAMPLES = 2000
_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Samples:
    """B's seconds to the first token, pair by pair."""

    sent: tuple[float, ...]  # of prompts that A had sent just before
    unsent: tuple[float, ...]  # of prompts that nobody had; A had sent another one just before
    own: tuple[float, ...]  # of prompts that B itself had sent: what a leak would look like


@dataclass(frozen=True, slots=True)
class Finding:
    """What samples say. All in milliseconds."""

    n_pairs: int
    sent_median_ms: float
    unsent_median_ms: float
    own_median_ms: float
    difference_ms: float  # of the medians, sent less unsent
    interval_ms: tuple[float, float]  # 90% of the difference, by bootstrap
    bound_ms: float
    is_equivalent: bool  # the whole interval is within the bound, both ways


async def measure(
    url: str,
    keys: tuple[str, str],
    *,
    n_pairs: int,
    prompt_tokens: int,
    seed: int,
    report: Callable[[str], None],
) -> Samples:
    """Probe a server as the tenants A and B, whose keys are given, in turns of random order.

    Every prompt is fresh, so that nothing but A's request tells the two kinds apart.

    Raises:
        BenchError: the server does not answer as expected, or a probe found what A had sent.
    """
    rng = random.Random(seed)  # noqa: S311 (prompts, not secrets)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    async with AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(
                aiohttp.ClientSession(
                    timeout=timeout, headers={hdrs.AUTHORIZATION: f"Bearer {key}"}
                )
            )
            for key in keys
        ]
        probing = await _Probing.begin(url, sessions[0], sessions[1], prompt_tokens, rng)
        pairs = []
        for index in range(_WARM_UPS + n_pairs):
            pairs.append(await probing.pair())
            if index % 25 == 24:
                report(f"{index + 1} of {_WARM_UPS + n_pairs} pairs")
    sent, unsent, own = zip(*pairs[_WARM_UPS:], strict=True)
    return Samples(sent, unsent, own)


def found(samples: Samples, *, bound_share: float, seed: int) -> Finding:
    """Return what `samples` say, with `bound_share` of the median as the bound.

    The interval is of 90%: its lying within the bound is what two one-sided tests at 5% ask for.
    """
    rng = random.Random(seed)  # noqa: S311
    sent, unsent = samples.sent, samples.unsent
    differences = sorted(_resampled(sent, unsent, rng) for _ in range(_RESAMPLES))
    low, high = differences[_RESAMPLES // 20], differences[-_RESAMPLES // 20]
    bound = bound_share * statistics.median(unsent)
    return Finding(
        n_pairs=len(sent),
        sent_median_ms=_ms(statistics.median(sent)),
        unsent_median_ms=_ms(statistics.median(unsent)),
        own_median_ms=_ms(statistics.median(samples.own)),
        difference_ms=_ms(statistics.median(sent) - statistics.median(unsent)),
        interval_ms=(_ms(low), _ms(high)),
        bound_ms=_ms(bound),
        is_equivalent=-bound <= low and high <= bound,
    )


def as_text(finding: Finding) -> str:
    """Return a finding for a terminal."""
    low, high = finding.interval_ms
    verdict = "equivalent" if finding.is_equivalent else "NOT shown to be equivalent"
    return "\n".join(
        (
            f"B's time to first token, medians of {finding.n_pairs}:",
            f"  A had sent the prompt      {finding.sent_median_ms:8.3f} ms",
            f"  nobody had                 {finding.unsent_median_ms:8.3f} ms",
            f"  B itself had (for scale)   {finding.own_median_ms:8.3f} ms",
            f"difference {finding.difference_ms:+.3f} ms, 90% from {low:+.3f} to {high:+.3f};"
            f" bound {finding.bound_ms:.3f}: {verdict}",
        )
    )


def as_data(finding: Finding, samples: Samples) -> dict[str, object]:
    """Return everything ready for JSON."""
    raw = {name: [_ms(each) for each in values] for name, values in asdict(samples).items()}
    return {"finding": asdict(finding), "samples_ms": raw}


@dataclass(frozen=True, slots=True)
class _Probing:
    url: str
    model: str
    a: aiohttp.ClientSession
    b: aiohttp.ClientSession
    maker: PromptMaker
    vocabulary: Vocabulary
    prompt_tokens: int
    rng: random.Random
    beginnings: set[tuple[str, ...]] = field(default_factory=set)

    @classmethod
    async def begin(
        cls,
        url: str,
        a: aiohttp.ClientSession,
        b: aiohttp.ClientSession,
        prompt_tokens: int,
        rng: random.Random,
    ) -> _Probing:
        async with b.get(f"{url}/v1/models") as response:
            model = (await response.json())["data"][0]["id"]

        async def count(text: str) -> int:
            body = {"model": model, "prompt": text}
            async with b.post(f"{url}/tokenize", json=body) as response:
                found: int = (await response.json())["count"]
            return found

        vocabulary = await learn_vocabulary(count)
        maker = PromptMaker(vocabulary.words, rng)
        return cls(url, model, a, b, maker, vocabulary, prompt_tokens, rng)

    async def pair(self) -> tuple[float, float, float]:
        """Return B's seconds for a prompt that A sent, for a fresh one, and for B's own again."""
        seconds: dict[bool, float] = {}
        own = ""
        for is_sent in self.rng.sample((True, False), 2):
            probe, other = self._fresh(), self._fresh()
            await self._seconds(self.a, probe if is_sent else other, finds=False)
            seconds[is_sent] = await self._seconds(self.b, probe, finds=False)
            own = probe
        return seconds[True], seconds[False], await self._seconds(self.b, own, finds=True)

    def _fresh(self) -> str:
        """Return a prompt whose first block is in none of those before it, even by chance."""
        while True:
            text = self.maker.fresh(self.prompt_tokens, self.vocabulary).text
            beginning = tuple(text.split()[: _LEAST_HIT - self.vocabulary.added_tokens])
            if beginning not in self.beginnings:
                self.beginnings.add(beginning)
                return text

    async def _seconds(self, session: aiohttp.ClientSession, prompt: str, *, finds: bool) -> float:
        body = {"model": self.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        answer = await stream_completion(session, self.url, body | {"ignore_eos": True})
        if ((answer.cached_tokens or 0) >= _LEAST_HIT) != finds:
            raise BenchError(f"{answer.cached_tokens} tokens were cached, which cannot be")
        return answer.first_token_seconds


def _resampled(sent: Sequence[float], unsent: Sequence[float], rng: random.Random) -> float:
    chosen = rng.choices(range(len(sent)), k=len(sent))
    return statistics.median(sent[i] for i in chosen) - statistics.median(unsent[i] for i in chosen)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 4)
