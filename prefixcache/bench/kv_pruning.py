"""What pruned state costs in quality, on a text of our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from prefixcache.bench.kv_formats import CHUNK_TOKENS, pieces_of
from prefixcache.config import EngineConfig, Pruning
from prefixcache.engine.allocator import keep_freed_memory
from prefixcache.engine.loading import LoadedModel, load_model
from prefixcache.engine.weights.quality import Quality, QualitySums, log_probabilities
from prefixcache.errors import ConfigError
from prefixcache.kv import KVStore

PIECE_TOKENS = 4096  # that are predicted from one another


@dataclass(frozen=True, slots=True)
class PruningRow:
    """One setting, over the tokens for which something was dropped."""

    kv_prune: str
    tokens: int
    whole_perplexity: float  # of the same tokens with nothing dropped
    quality: Quality  # beside the same


def compare_prunings(
    config: EngineConfig,
    settings: Sequence[str],
    text: str,
    *,
    env: Mapping[str, str],
    report: Callable[[str], None],
) -> list[PruningRow]:
    """Return a row for each of `settings`, with float32 weights and the numbers of `config`.

    Raises:
        ConfigError: the text is shorter than 64 tokens, or some setting drops nothing of its
            pieces or of this model.

    Cost: a forward over the text, and one for each setting.
    """
    keep_freed_memory(env)  # as the worker does
    exact = msgspec.structs.replace(config, weights="float32", kv_prune=None)
    loaded = load_model(exact, env=env, report=report)
    pieces = list(pieces_of(loaded, text, PIECE_TOKENS))
    for setting in settings:
        _require_loss(loaded, setting, max(map(len, pieces)))
    sums = _sums(loaded, settings, pieces, report)
    return [
        PruningRow(setting, mine.n_tokens, whole.quality().perplexity, mine.quality())
        for setting, (mine, whole) in sums.items()
    ]


def prunings_table(rows: Sequence[PruningRow]) -> str:
    """Return rows as lines of text under a heading."""
    heading = (
        f"{'kept':<14}{'tokens':>8}{'all kept':>10}{'perplexity':>12}{'KL mean':>10}{'KL max':>9}"
        f"{'agree':>9}"
    )
    return "\n".join([heading, *map(_line, rows)])


def _line(row: PruningRow) -> str:
    of = row.quality
    return (
        f"{row.kv_prune:<14}{row.tokens:>8}{row.whole_perplexity:>10.3f}{of.perplexity:>12.3f}"
        f"{of.kl_mean:>10.2g}{of.kl_max:>9.2g}{of.agreement:>9.2%}"
    )


def _sums(
    loaded: LoadedModel,
    settings: Sequence[str],
    pieces: Sequence[list[int]],
    report: Callable[[str], None],
) -> dict[str, tuple[QualitySums, QualitySums]]:
    """Feed each piece pruned in all ways, and whole; few rows are in memory at a time."""
    n_blocks = -(-max(map(len, pieces)) // loaded.info.block_size_tokens)
    reference = _with_pruning(loaded, None, n_blocks)
    served = {setting: _with_pruning(loaded, setting, n_blocks) for setting in settings}
    sums = {setting: (QualitySums(), QualitySums()) for setting in settings}
    for index, piece in enumerate(pieces):
        report(f"part {index + 1} of {len(pieces)}")
        for start in range(0, len(piece), CHUNK_TOKENS):
            stop = min(start + CHUNK_TOKENS, len(piece))
            whole = log_probabilities(reference, piece[:stop], first=start)
            for setting, each in served.items():
                found = log_probabilities(each, piece[:stop], first=start)
                first = max(sum(Pruning.read(setting)) - start, 0)  # that lacks something
                following = piece[start + first + 1 : stop + 1]
                if following:
                    mine, all_seen = sums[setting]
                    mine.add(found[first:], whole[first:], following)
                    all_seen.add(whole[first:], whole[first:], following)
    return sums


def _require_loss(loaded: LoadedModel, setting: str, n_tokens: int) -> None:
    pruning = Pruning.read(setting)
    if sum(pruning) + 1 >= n_tokens:
        reason = f"drops nothing of {n_tokens} tokens, the longest piece; lower it"
        raise ConfigError("kv_prune", setting, reason)
    if all(group.window is not None for group in loaded.store.layout.groups):
        raise ConfigError("kv_prune", setting, "every layer of the model has a window of its own")


def _with_pruning(loaded: LoadedModel, setting: str | None, n_blocks: int) -> LoadedModel:
    """Return the same model with a store of `n_blocks` that is pruned so."""
    pruning = None if setting is None else Pruning.read(setting)
    layout = loaded.store.layout
    layout = replace(layout, groups=tuple(group.pruned(pruning) for group in layout.groups))
    return replace(loaded, store=KVStore(layout, n_blocks, loaded.model.device))
