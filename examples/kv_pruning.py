"""Fill the manual's table of pruned state from the result file.

prefixcache bench quality --kv-prune 4+256,4+1024 --json examples/results/kv_pruning.json
python -m examples.kv_pruning
"""

from __future__ import annotations

from examples.index_speed import ROOT, Result, filled, place, read

PAGE = ROOT / "gateway/manual/kv-formats.md"
HEAD = (
    "kept",
    "tokens",
    "perplexity, all kept",
    "perplexity",
    "KL, mean",
    "KL, largest",
    "same best token",
)


def table(result: Result) -> str:
    """Return a line for each setting."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for row in result["results"]:
        of = row["quality"]
        lines.append(
            f"| `{row['kv_prune']}` | {row['tokens']:,} | {row['whole_perplexity']:.2f}"
            f" | {of['perplexity']:.2f} | {of['kl_mean']:.2g} | {of['kl_max']:.2g}"
            f" | {of['agreement']:.1%} |"
        )
    return "\n".join(lines)


def render(page: str, result: Result) -> str:
    """Return `page` with the table as the result has it."""
    where = f"{place(result)} [Result](../../examples/results/kv_pruning.json)"
    return filled(page, "pruning", f"{where}\n\n{table(result)}")


def main() -> None:
    """Rewrite the page."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(render(page, read("kv_pruning.json")), encoding="utf-8")


if __name__ == "__main__":
    main()
