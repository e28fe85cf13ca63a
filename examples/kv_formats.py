"""Fill the manual's tables of KV formats and of pruned state from their result files.

prefixcache bench quality --kv-format float16,int8,int4 --json examples/results/kv_formats.json
prefixcache bench quality --kv-prune 4+256,4+1024 --json examples/results/kv_pruning.json
python -m examples.kv_formats
"""

from __future__ import annotations

from collections.abc import Iterable

from examples.index_speed import ROOT, Result, filled, place, read

PAGE = ROOT / "gateway/manual/kv-formats.md"
_DIVERGENCE = "KL, mean | KL, largest | same best token"
_FORMATS = f"| format | bytes a token | perplexity | {_DIVERGENCE} | step |"
_PRUNING = f"| kept | tokens | perplexity, all kept | perplexity | {_DIVERGENCE} |"


def render_formats(page: str, result: Result) -> str:
    """Return `page` with a line for each format; steps are shares of the model's own format's."""
    lines = (
        f"| `{row['kv_format']}` | {row['bytes_per_token']:,} | {_quality(row)}"
        f" | {row['step_ratio']:.2f} |"
        for row in result["results"]
    )
    where = f"{result['results'][0]['tokens']:,} tokens, {_source(result, 'kv_formats')}"
    return filled(page, "formats", f"{where}\n\n{_table(_FORMATS, lines)}")


def render_pruning(page: str, result: Result) -> str:
    """Return `page` with a line for each setting."""
    lines = (
        f"| `{row['kv_prune']}` | {row['tokens']:,} | {row['whole_perplexity']:.2f}"
        f" | {_quality(row)} |"
        for row in result["results"]
    )
    return filled(page, "pruning", f"{_source(result, 'kv_pruning')}\n\n{_table(_PRUNING, lines)}")


def _quality(row: Result) -> str:
    of = row["quality"]
    return (
        f"{of['perplexity']:.2f} | {of['kl_mean']:.2g} | {of['kl_max']:.2g} | {of['agreement']:.1%}"
    )


def _source(result: Result, name: str) -> str:
    return f"{place(result)} [Result](../../examples/results/{name}.json)"


def _table(head: str, lines: Iterable[str]) -> str:
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *lines])


def main() -> None:
    """Rewrite the page."""
    page = render_formats(PAGE.read_text(encoding="utf-8"), read("kv_formats.json"))
    PAGE.write_text(render_pruning(page, read("kv_pruning.json")), encoding="utf-8")


if __name__ == "__main__":
    main()
