"""What KV formats save in memory, and cost in quality and time, on a text of our own."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources

import msgspec

from prefixcache.bench.quality import text_tokens
from prefixcache.config import EngineConfig, KVFormatName
from prefixcache.engine.allocator import keep_freed_memory
from prefixcache.engine.loading import LoadedModel, load_model
from prefixcache.engine.weights.quality import Quality, QualitySums, log_probabilities, step_ms
from prefixcache.kv import KVStore, require_format

REFERENCE: KVFormatName = "auto"
PIECE_TOKENS = 2048  # that are predicted from one another
CHUNK_TOKENS = 128
STREAMS, CONTEXT_TOKENS = 8, 1024  # of the step that is timed


@dataclass(frozen=True, slots=True)
class FormatRow:
    """One format: what it takes, how well the model predicts with it, how long a step takes."""

    kv_format: str
    bytes_per_token: int
    tokens: int  # of the text
    quality: Quality
    step_ms: float  # processor time: one token for each of STREAMS after CONTEXT_TOKENS of its own
    step_ratio: float  # to the reference's, the median of steps in turns


def long_text() -> str:
    """Return the text that is measured by default: chats and prose about this very project."""
    return resources.files("prefixcache.bench").joinpath("long.txt").read_text("utf-8")


def compare_formats(
    config: EngineConfig,
    names: Sequence[KVFormatName],
    text: str,
    *,
    repeats: int,
    env: Mapping[str, str],
    report: Callable[[str], None],
) -> list[FormatRow]:
    """Return a row for the model's own numbers, then for each of `names`.

    Quality is that of float32 weights, so that formats alone differ; steps are timed with the
    weights of `config`.

    Raises:
        ConfigError: the text is shorter than 64 tokens, or a format cannot be had here.

    Cost: a forward over the text for each format.
    """
    keep_freed_memory(env)  # as the worker does
    names = (REFERENCE, *(name for name in names if name != REFERENCE))
    exact = msgspec.structs.replace(config, weights="float32")
    loaded = load_model(exact, env=env, report=report)
    for name in names:
        require_format(name, loaded.model.device)
    pieces = list(pieces_of(loaded, text, PIECE_TOKENS))
    found = _qualities(loaded, names, pieces, report)
    timed = loaded
    if config.weights != "float32":
        timed = load_model(config, env=env, report=report)
    steps = _steps_ms(timed, names, repeats)
    return [
        FormatRow(
            kv_format=name,
            bytes_per_token=_with_format(loaded, name, 1).store.layout.bytes_per_token,
            tokens=sum(map(len, pieces)),
            quality=found[name],
            step_ms=statistics.median(steps[name]),
            step_ratio=_ratio(steps[name], steps[REFERENCE]),
        )
        for name in names
    ]


def formats_table(rows: Sequence[FormatRow]) -> str:
    """Return rows as lines of text under a heading."""
    heading = (
        f"{'format':<10}{'bytes':>8}{'perplexity':>12}{'KL mean':>10}{'KL max':>9}{'agree':>9}"
        f"{'step ms':>9}{'ratio':>7}"
    )
    return "\n".join([heading, *map(_line, rows)])


def _line(row: FormatRow) -> str:
    of = row.quality
    return (
        f"{row.kv_format:<10}{row.bytes_per_token:>8}{of.perplexity:>12.3f}{of.kl_mean:>10.2g}"
        f"{of.kl_max:>9.2g}{of.agreement:>9.2%}{row.step_ms:>9.1f}{row.step_ratio:>7.2f}"
    )


def pieces_of(loaded: LoadedModel, text: str, most_tokens: int) -> Iterator[list[int]]:
    """Yield a text's token ids in pieces of `most_tokens`, or the model's most, at most.

    Raises ConfigError where there are fewer than 64.
    """
    token_ids = text_tokens(loaded, text)
    size = min(most_tokens, loaded.info.max_model_tokens)
    n_pieces = -(-len(token_ids) // size)
    for index in range(n_pieces):  # of even length, so that none is too short to say anything
        bounds = (len(token_ids) * at // n_pieces for at in (index, index + 1))
        yield token_ids[slice(*bounds)]


def _qualities(
    loaded: LoadedModel,
    names: Sequence[KVFormatName],
    pieces: Sequence[list[int]],
    report: Callable[[str], None],
) -> dict[str, Quality]:
    """Feed each piece to all formats, chunk by chunk, so that few rows are in memory at a time."""
    n_blocks = PIECE_TOKENS // loaded.info.block_size_tokens + 1
    served = {name: _with_format(loaded, name, n_blocks) for name in names}
    sums = {name: QualitySums() for name in names}
    for index, piece in enumerate(pieces):
        report(f"part {index + 1} of {len(pieces)}")
        for start in range(0, len(piece), CHUNK_TOKENS):
            stop = min(start + CHUNK_TOKENS, len(piece))
            following = piece[start + 1 : stop + 1]
            reference = log_probabilities(served[REFERENCE], piece[:stop], first=start)
            sums[REFERENCE].add(reference, reference, following)
            for name in names[1:]:
                found = log_probabilities(served[name], piece[:stop], first=start)
                sums[name].add(found, reference, following)
    return {name: found.quality() for name, found in sums.items()}


def _steps_ms(
    loaded: LoadedModel, names: Sequence[KVFormatName], repeats: int
) -> dict[str, list[float]]:
    """Time a step of each format in turns, so that a busy moment is nobody's alone."""
    context = min(CONTEXT_TOKENS, loaded.info.max_model_tokens - 1)
    n_blocks = STREAMS * (context // loaded.info.block_size_tokens + 1)
    served = {name: _with_format(loaded, name, n_blocks) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, each in served.items():
            options = {"n_rows": STREAMS, "n_tokens": 1, "context": context}
            times[name].append(step_ms(each, **options, repeats=1))
    return times


def _with_format(loaded: LoadedModel, name: KVFormatName, n_blocks: int) -> LoadedModel:
    """Return the same model with a store of another format."""
    layout = replace(loaded.store.layout, kept_as=name)
    return replace(loaded, store=KVStore(layout, n_blocks, loaded.model.device))


def _ratio(mine: Sequence[float], reference: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(mine, reference, strict=True))
