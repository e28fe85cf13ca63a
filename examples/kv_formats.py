"""Fill the manual's table of KV formats from the result file.

prefixcache bench quality --kv-format float16,int8,int4 --json examples/results/kv_formats.json
python -m examples.kv_formats
"""

from __future__ import annotations

from examples.index_speed import ROOT, Result, filled, place, read

PAGE = ROOT / "gateway/manual/kv-formats.md"
HEAD = (
    "format",
    "bytes a token",
    "perplexity",
    "KL, mean",
    "KL, largest",
    "same best token",
    "step",
)


def table(result: Result) -> str:
    """Return a line for each format; steps as shares of the model's own format's."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for row in result["results"]:
        of = row["quality"]
        lines.append(
            f"| `{row['kv_format']}` | {row['bytes_per_token']:,} | {of['perplexity']:.2f}"
            f" | {of['kl_mean']:.2g} | {of['kl_max']:.2g} | {of['agreement']:.1%}"
            f" | {row['step_ratio']:.2f} |"
        )
    return "\n".join(lines)


def render(page: str, result: Result) -> str:
    """Return `page` with the table as the result has it."""
    n_tokens = result["results"][0]["tokens"]
    where = f"{n_tokens:,} tokens, {place(result)} [Result](../../examples/results/kv_formats.json)"
    return filled(page, "formats", f"{where}\n\n{table(result)}")


def main() -> None:
    """Rewrite the page."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(render(page, read("kv_formats.json")), encoding="utf-8")


if __name__ == "__main__":
    main()
