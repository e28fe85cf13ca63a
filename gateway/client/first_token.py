"""Time to first token, cold and warm, beside the least that the warm one can cost."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import aiohttp

from gateway.client.prompts import WORDS
from gateway.client.streaming import BenchError, stream_completion
from prefixcache.bench.straight import StraightStep


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the repeats, in seconds, for one length of the shared prefix."""

    prefix_tokens: int
    new_tokens: int
    repeats: int
    cold_seconds: float  # nothing cached
    warm_seconds: float  # the prefix cached, the new tokens computed
    straight_seconds: float  # the same new tokens, fed straight to a store that holds the prefix
    cold_to_warm: float
    warm_to_straight: float  # median of the ratios pair by pair


class PromptMaker:
    """Random prompts of exact lengths, as text: words that are one token each."""

    def __init__(self, straight: StraightStep, rng: random.Random) -> None:
        self._straight = straight
        self._rng = rng
        self._words = [word for word in WORDS if len(self.token_ids(word)) == 1]

    def text(self, n_tokens: int) -> str:
        """Return fresh text of `n_tokens` tokens."""
        return "".join(self._rng.choices(self._words, k=n_tokens))

    def token_ids(self, text: str) -> list[int]:
        """Return the ids that the server will see for `text`."""
        return self._straight.tokenizer.encode(text)


async def measure(
    url: str,
    straight: StraightStep,
    *,
    prefix_tokens: Sequence[int],
    new_tokens: int,
    repeats: int,
    seed: int,
) -> list[Row]:
    """Measure every prefix length, cold, warm and straight in turn, with fresh prompts.

    Raises:
        BenchError: the server does not answer as expected, or computed other tokens.
    """
    maker = PromptMaker(straight, random.Random(seed))  # noqa: S311 (prompts, not secrets)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        model = await _model(session, url)
        rows = []
        for n_prefix in prefix_tokens:
            turns = [
                await _turn(session, url, model, straight, maker, n_prefix, new_tokens)
                for _ in range(repeats + 1)
            ]
            rows.append(_row(turns[1:], n_prefix, new_tokens))  # the first one warms up
    return rows


async def _model(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/v1/models") as response:
        listing = await response.json()
    model: str = listing["data"][0]["id"]
    return model


async def _turn(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    straight: StraightStep,
    maker: PromptMaker,
    n_prefix: int,
    n_new: int,
) -> tuple[float, float, float]:
    """Return seconds (cold, warm, straight) for one fresh prefix."""
    prefix = maker.text(n_prefix)
    prompts = [prefix + maker.text(n_new) for _ in range(2)]
    ids = [maker.token_ids(prompt) for prompt in prompts]
    if any(len(each) != n_prefix + n_new for each in ids):
        raise BenchError(f"made a prompt of {len(ids[0])} tokens, not {n_prefix + n_new}")
    body = {"model": model, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    cold, warm = [
        await stream_completion(session, url, {**body, "prompt": prompt}) for prompt in prompts
    ]
    missed, hit = cold.cached_tokens or 0, warm.cached_tokens or 0
    if missed >= 16 or not n_prefix <= hit < n_prefix + n_new:
        raise BenchError(f"expected 0 and {n_prefix} tokens cached; they were {missed} and {hit}")
    straight.fill(ids[1][:hit])
    least = straight.seconds(ids[1][hit:], hit)
    return cold.first_token_seconds, warm.first_token_seconds, least


def _row(turns: Sequence[tuple[float, float, float]], n_prefix: int, n_new: int) -> Row:
    cold, warm, least = (statistics.median(column) for column in zip(*turns, strict=True))
    return Row(
        prefix_tokens=n_prefix,
        new_tokens=n_new,
        repeats=len(turns),
        cold_seconds=round(cold, 4),
        warm_seconds=round(warm, 4),
        straight_seconds=round(least, 4),
        cold_to_warm=round(statistics.median(turn[0] / turn[1] for turn in turns), 2),
        warm_to_straight=round(statistics.median(turn[1] / turn[2] for turn in turns), 3),
    )


def as_table(rows: Sequence[Row]) -> str:
    """Return the rows as text for a terminal."""
    heads = ("prefix", "new", "cold s", "warm s", "straight s", "cold/warm", "warm/straight")
    lines = ["  ".join(heads)]
    for row in rows:
        cells = (
            f"{row.prefix_tokens}",
            f"{row.new_tokens}",
            f"{row.cold_seconds:.3f}",
            f"{row.warm_seconds:.3f}",
            f"{row.straight_seconds:.3f}",
            f"{row.cold_to_warm:.1f}",
            f"{row.warm_to_straight:.2f}",
        )
        pairs = zip(cells, heads, strict=True)
        lines.append("  ".join(cell.rjust(len(head)) for cell, head in pairs))
    return "\n".join(lines)


def as_data(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Return the rows ready for JSON."""
    return [asdict(row) for row in rows]
