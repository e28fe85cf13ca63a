"""The command `prefixcache bench policies`."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.bench import each, one_of, save
from gateway.policy_flags import policy_flags
from prefixcache.bench.policies import as_data, as_table, compare
from prefixcache.index.policies import POLICY_NAMES, PolicyOptions
from prefixcache.traces import read_trace

_UNLIMITED = "unlimited"


def _capacity(text: str) -> int | None:
    if text == _UNLIMITED:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise click.BadParameter(f"{text!r} is neither a number above 0 nor {_UNLIMITED!r}")
    return int(text)


@click.command(
    "policies",
    epilog="Example: prefixcache bench policies --trace conversation_trace.jsonl --capacity 10000",
)
@click.option(
    "--trace",
    "paths",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    required=True,
    help="Mooncake .jsonl, WEKA .json, or a folder of WEKA files; may be given several times.",
)
@click.option(
    "--capacity",
    "capacities",
    callback=each(_capacity),
    default="1000,10000",
    show_default=True,
    metavar="N,...",
    help="In blocks of the trace; unlimited: nothing is ever given up.",
)
@click.option(
    "--policy",
    "names",
    callback=each(one_of(POLICY_NAMES)),
    default="lru,cost-aware,learned,slru,lfu,fifo",
    show_default=True,
    metavar="NAME,...",
    help=f"Of {', '.join(POLICY_NAMES)}.",
)
@policy_flags
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result here.")
def policies(
    paths: tuple[Path, ...],
    capacities: tuple[int | None, ...],
    names: tuple[str, ...],
    idle_ttl_seconds: float,
    protected_share: float,
    json_file: Path | None,
) -> None:
    """Compare eviction policies on request traces: no model, no HTTP.

    Requests run one after another through the real index. `hit` is the share of blocks that were
    cached when their request arrived; `attention` the share of (token, token) pairs that
    attention was spared, which weighs deep tokens more.
    """
    traces = {str(path): read_trace(path) for path in paths}
    options = PolicyOptions(idle_ttl_seconds=idle_ttl_seconds, protected_share=protected_share)
    rows = list(compare(traces, policies=names, capacities=capacities, options=options))
    click.echo(as_table(rows))
    if json_file is not None:
        save(json_file, {"results": as_data(rows)})
