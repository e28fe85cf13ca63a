"""What packed weights cost in quality and bring in speed, on a text of our own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from prefixcache.config import EngineConfig, WeightsName
from prefixcache.engine.allocator import keep_freed_memory
from prefixcache.engine.loading import LoadedModel, load_model
from prefixcache.engine.weights.quality import Quality, log_probabilities, quality, step_ms
from prefixcache.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

REFERENCE: WeightsName = "float32"
PROMPT_TOKENS, CONTEXT_TOKENS, DECODE_ROWS = 1024, 256, 8
LEAST_TOKENS = 64  # of a text that is to tell anything


@dataclass(frozen=True, slots=True)
class Row:
    """One setting: what it is here, how well it predicts and how long its steps take."""

    weights: str
    kind: str  # what it means on this machine
    tokens: int  # of the text
    quality: Quality
    prompt_ms: float  # processor time, as below: PROMPT_TOKENS or the model's most of one prompt
    one_row_ms: float  # one token after CONTEXT_TOKENS
    rows_ms: float  # one token for each of DECODE_ROWS sequences


def own_text() -> str:
    """Return the text that is measured by default: prose, talk, a list and code."""
    return resources.files("prefixcache.bench").joinpath("quality.txt").read_text("utf-8")


def compare(
    config: EngineConfig,
    weights: Sequence[WeightsName],
    text: str,
    *,
    repeats: int,
    env: Mapping[str, str],
    report: Callable[[str], None],
) -> Iterator[Row]:
    """Yield a row for float32, then for each of `weights`; one model is in memory at a time.

    Raises:
        ConfigError: the text is shorter than 64 tokens, or a setting cannot be had here.

    Cost: memory for vocabulary * tokens * 8 bytes beside the model.
    """
    keep_freed_memory(env)  # as the worker does
    reference = None
    for each in (REFERENCE, *(name for name in weights if name != REFERENCE)):
        loaded = load_model(msgspec.structs.replace(config, weights=each), env=env, report=report)
        token_ids = text_tokens(loaded, text)[: loaded.info.max_model_tokens]
        found = log_probabilities(loaded, token_ids)
        reference = found if reference is None else reference
        yield Row(
            weights=each,
            kind=loaded.info.weights,
            tokens=len(token_ids),
            quality=quality(found, reference, token_ids),
            prompt_ms=_prompt_ms(loaded, max(3, repeats // 5)),
            one_row_ms=_decode_ms(loaded, 1, repeats),
            rows_ms=_decode_ms(loaded, DECODE_ROWS, repeats),
        )


def as_table(rows: Sequence[Row]) -> str:
    """Return rows as lines of text under a heading."""
    heading = (
        f"{'weights':<9}{'kind':<10}{'perplexity':>11}{'KL mean':>10}{'KL max':>9}{'agree':>8}"
        f"{'prompt':>9}{'1 row':>8}{f'{DECODE_ROWS} rows':>8}  (ms of processor time)"
    )
    return "\n".join([heading, *map(_line, rows)])


def as_data(rows: Sequence[DataclassInstance]) -> list[dict[str, object]]:
    """Return rows ready for JSON."""
    return [dataclasses.asdict(row) for row in rows]


def text_tokens(loaded: LoadedModel, text: str) -> list[int]:
    """Return a text's token ids. Raises ConfigError where it is shorter than LEAST_TOKENS."""
    assert loaded.tokenizer is not None, "load_model always loads one"
    token_ids = list(loaded.tokenizer.encode(text))
    if len(token_ids) < LEAST_TOKENS:
        raise ConfigError("text", len(token_ids), f"tokens; at least {LEAST_TOKENS} are needed")
    return token_ids


def _line(row: Row) -> str:
    of = row.quality
    return (
        f"{row.weights:<9}{row.kind:<10}{of.perplexity:>11.3f}{of.kl_mean:>10.2g}{of.kl_max:>9.2g}"
        f"{of.agreement:>8.2%}{row.prompt_ms:>9.0f}{row.one_row_ms:>8.1f}{row.rows_ms:>8.1f}"
    )


def _prompt_ms(loaded: LoadedModel, repeats: int) -> float:
    n_tokens = min(PROMPT_TOKENS, loaded.info.max_model_tokens)
    return step_ms(loaded, n_rows=1, n_tokens=n_tokens, context=0, repeats=repeats)


def _decode_ms(loaded: LoadedModel, n_rows: int, repeats: int) -> float:
    return step_ms(loaded, n_rows=n_rows, n_tokens=1, context=CONTEXT_TOKENS, repeats=repeats)
