"""Fill the tables of the manual's page on measuring servers from the result files beside this.

    python examples/servers.py

`results/servers_vllm.json` and `results/servers_llama.json` are what `prefixcache bench serve`
wrote while those servers ran, without the machine's folders and the single requests. The page's
text is written by hand.
"""

from __future__ import annotations

from examples.index_speed import ROOT, Result, amount, filled, place, read

PAGE = ROOT / "gateway/manual/measuring-servers.md"
SITTINGS = ("vllm", "llama")


def table(result: Result) -> str:
    """Return the medians of all servers; in brackets, each against ours turn by turn."""
    names = [server["name"] for server in result["servers"]]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for row in result["rows"]:
        cells = [f"{amount(row['medians'][name])} ({row['to_first'][name]:.2f})" for name in names]
        lines.append(f"| {row['scenario']}, {row['figure']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def render(page: str, sitting: str, result: Result) -> str:
    """Return `page` with the table of one sitting as its result has it."""
    turns = {run["turn"] for run in result["runs"] if not run["is_warm_up"]}
    where = f"{place(result)[:-1]}, {len(turns)} turns. `{result['command']}`"
    return filled(page, sitting, f"{where}\n\n{table(result)}")


def main() -> None:
    """Rewrite the page."""
    page = PAGE.read_text(encoding="utf-8")
    for sitting in SITTINGS:
        page = render(page, sitting, read(f"servers_{sitting}.json"))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
