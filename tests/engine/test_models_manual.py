"""The manual's list of models is the code's."""

from __future__ import annotations

from pathlib import Path

from prefixcache.engine.families import FAMILIES

ROOT = Path(__file__).parent.parent.parent


def table() -> str:
    """Return the list as the manual shows it."""
    rows = [
        f"| {each.name} | {', '.join(f'`{kind}`' for kind in each.model_types)} | {each.features} |"
        for each in FAMILIES
    ]
    return "\n".join(["| family | `model_type` | beside the common |", "|---|---|---|", *rows])


def test_the_manual_lists_the_families_of_the_code() -> None:
    """What people read is what tests hold."""
    text = (ROOT / "gateway/manual/models.md").read_text(encoding="utf-8")
    listed = text.split("<!-- families -->\n")[1].split("\n<!-- end of families -->")[0]
    assert listed == table(), f"put this into gateway/manual/models.md:\n{table()}"
