"""Fill the tables of the manual's page on attention from the result file beside this.

    python examples/attention_speed.py

`results/attention.json` is written by
`prefixcache bench attention --json examples/results/attention.json`. The page's text is written by
hand.
"""

from __future__ import annotations

from examples.index_speed import ROOT, Result, amount, filled, place, read

PAGE = ROOT / "gateway/manual/attention.md"


def decodes_table(result: Result) -> str:
    """Return the table of decode steps; in brackets, the shared one against the other."""
    lines = ["| streams | shared tokens | shared | apart | alone |", "|---" * 5 + "|"]
    lines += [
        f"| {row['streams']} | {row['prefix_tokens']:,} | {amount(row['shared_ms'])}"
        f" | {amount(row['apart_ms'])} ({row['shared_to_apart']:.2f})"
        f" | {amount(row['alone_ms'])} ({row['shared_to_alone']:.2f}) |"
        for row in result["decodes"]
    ]
    return "\n".join(lines)


def prompts_table(result: Result) -> str:
    """Return the table of chunks of a prompt."""
    lines = ["| new tokens | cached tokens | ms | ms a new token |", "|---" * 4 + "|"]
    for row in result["prompts"]:
        new, chunk = row["new_tokens"], row["chunk_ms"]
        lines.append(
            f"| {new:,} | {row['cached_tokens']:,} | {amount(chunk)} | {amount(chunk / new)} |"
        )
    return "\n".join(lines)


def render(page: str, result: Result) -> str:
    """Return `page` with both tables as the result has them."""
    torch = result["machine"]["versions"]["torch"]
    where = f"{place(result)[:-1]}, torch {torch}. `{result['command']}`"
    page = filled(page, "decodes", f"{where}\n\n{decodes_table(result)}")
    return filled(page, "prompts", prompts_table(result))


def main() -> None:
    """Rewrite the page."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(render(page, read("attention.json")), encoding="utf-8")


if __name__ == "__main__":
    main()
