"""The command `prefixcache replay`."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.bench import each, one_of, save
from gateway.client.live_report import live_data, live_text
from gateway.client.own_server import run_to_the_end
from gateway.policy_flags import policy_flags
from gateway.replay_live import INTERRUPTED, LiveOptions, replayed_against
from gateway.replay_live_options import LiveFlags, asked_of_server, is_given, live_options
from gateway.replay_options import (
    BYTES_PER_TOKEN,
    read_block_tokens,
    read_capacities,
    read_capacity,
    read_encoder,
    read_running,
    read_warm_up,
    replay_plan,
)
from gateway.replay_run import Reports, explained, load_plots, replayed
from prefixcache.index.policies import PolicyOptions
from prefixcache.text import PromptEncoder
from prefixcache.traces import FORMATS, Pacing, ReadOptions, Trace, open_trace
from prefixcache.traces.capacity import Capacity
from prefixcache.traces.computed import POLICIES
from prefixcache.traces.reading import SECONDS_PER_UNIT
from prefixcache.traces.report import as_text
from prefixcache.traces.running import RunningTimes
from prefixcache.traces.whatif import ROUTINGS


@click.command(
    "replay",
    epilog="Example: prefixcache replay conversation_trace.jsonl --policy lru,belady"
    " --capacity 1000,10000,unlimited",
)
@click.argument("names", metavar="TRACE...", nargs=-1, required=True)
@click.option(
    "--format",
    "format_name",
    metavar="NAME",
    help=f"Of {', '.join(FORMATS)}.  [default: told by what the file begins with]",
)
@click.option(
    "--policy",
    "policies",
    callback=each(one_of(POLICIES)),
    default="lru",
    show_default=True,
    metavar="NAME,...",
    help=f"Of {', '.join(POLICIES)}. belady is the best that can be, by knowing what comes.",
)
@click.option(
    "--capacity",
    "capacities",
    callback=read_capacities,
    default="unlimited",
    show_default=True,
    metavar="N,...",
    help="In blocks (10000), in tokens (160000tokens), in bytes (20GiB), or unlimited.",
)
@click.option(
    "--kv-bytes-per-token",
    BYTES_PER_TOKEN,
    type=click.IntRange(min=1),
    is_eager=True,
    help="What capacities in bytes count by, where no --model is named.",
)
@click.option(
    "--model",
    is_eager=True,
    help="Whose KV capacities in bytes are for: a folder or name, as `prefixcache plan` takes it."
    " With --against: what the server calls it.  [default: the only one it has]",
)
@click.option(
    "--kv-format", is_eager=True, help="In which it is kept.  [default: the checkpoint's own]"
)
@click.option(
    "--block-tokens",
    "block_tokens",
    callback=read_block_tokens,
    metavar="N,...",
    help="Replay with larger blocks: multiples of the trace's own.",
)
@click.option(
    "--trace-block-tokens",
    type=click.IntRange(min=1),
    help="What an id of the trace stands for, and what text is cut into.  [default: the format's]",
)
@click.option(
    "--time-unit",
    type=click.Choice(tuple(SECONDS_PER_UNIT)),
    help="Of the timestamps.  [default: the format's]",
)
@click.option(
    "--tokenizer",
    "encoder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    callback=read_encoder,
    metavar="FOLDER",
    help="A model's tokenizer and template, for traces with text.  [default: a stand-in]",
)
@click.option("--strict", is_flag=True, help="Stop at the first row that cannot be used.")
@click.option("--sort", is_flag=True, help="Order requests by arrival; holds the trace in memory.")
@click.option(
    "--warm-up",
    callback=read_warm_up,
    default="0",
    metavar="N|P%",
    help="Report hit rates without the first requests as well: so many, or such a share.",
)
@click.option("--speed", type=float, default=1.0, help="Let the trace's clock run so much faster.")
@click.option(
    "--max-gap",
    "max_gap_seconds",
    type=float,
    help="Cut silences to so many seconds of the trace, before the speed counts.",
)
@policy_flags
@click.option(
    "--tenants",
    type=click.Choice(("isolated", "shared")),
    default="isolated",
    show_default=True,
    help="Whether tenants, where the trace has them, hit what others have sent.",
)
@click.option(
    "--publish",
    "n_published",
    type=click.IntRange(min=1),
    help="What if so many prefixes that tenants have in common were published.",
)
@click.option(
    "--host-capacity",
    callback=read_capacity,
    metavar="N",
    help="What if what leaves the device were kept in a host tier of this size.",
)
@click.option(
    "--disk-capacity",
    callback=read_capacity,
    metavar="N",
    help="What if what leaves the host tier, or the device without one, were kept on disk.",
)
@click.option(
    "--replicas",
    "n_replicas",
    type=click.IntRange(min=1),
    default=1,
    help="What if there were several caches, each of the capacity.",
)
@click.option(
    "--routing",
    type=click.Choice(tuple(ROUTINGS)),
    default="prefix-aware",
    show_default=True,
    help="How requests are spread over replicas.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    help="Of random routing. With --against: sends the same prompts again.  [default: fresh ones]",
)
@click.option(
    "--running-seconds",
    "running",
    callback=read_running,
    metavar="N|measured",
    help="What if requests overlapped: each holds its blocks for so long, or for as long as the"
    " trace says.  [default: one after another]",
)
@click.option("--why", "explains", is_flag=True, help="Tell what is shared, by whom and how soon.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result here.")
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(path_type=Path),
    help="Draw hit rates by capacity, with the optimum, and over time (.png, .svg or .pdf).",
)
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path), help="Write all of it as one page."
)
@live_options
def replay_command(
    *,
    names: tuple[str, ...],
    format_name: str | None,
    policies: tuple[str, ...],
    capacities: tuple[Capacity, ...],
    kv_bytes_per_token: int | None,  # this and the next two the capacities have taken in
    model: str | None,
    kv_format: str | None,
    block_tokens: tuple[int | None, ...],
    trace_block_tokens: int | None,
    time_unit: str | None,
    encoder: PromptEncoder | None,
    strict: bool,
    sort: bool,
    warm_up: tuple[int, bool],
    speed: float,
    max_gap_seconds: float | None,
    idle_ttl_seconds: float,
    protected_share: float,
    tenants: str,
    n_published: int | None,
    host_capacity: Capacity | None,
    disk_capacity: Capacity | None,
    n_replicas: int,
    routing: str,
    seed: int,
    running: RunningTimes | None,
    explains: bool,
    json_file: Path | None,
    plot_file: Path | None,
    html_file: Path | None,
    live: LiveFlags,
) -> None:
    """Replay request traces and report hit rates: no model, no HTTP, unless --against names a URL.

    TRACE is a file, plain or compressed (.gz, .zst), a folder, or a pattern such as 'logs/*.jsonl'
    whose files are one trace. Requests run through the real index, one after another
    unless --running-seconds has them overlap. Rows that cannot be used are counted and named.

    With --against the requests are sent to a server, at their times or some at a time, and what it
    had cached is set beside what was to be expected. Ctrl-C ends with what was measured.
    """
    options = ReadOptions(
        strict=strict,
        sort=sort or live.against is not None,
        keep_prompts=live.against is not None,
        block_tokens=trace_block_tokens,
        time_unit=time_unit,
        encoder=encoder,
    )
    pacing = Pacing(speed=speed, max_gap_seconds=max_gap_seconds)
    traces = [
        open_trace(name, format=format_name, options=options, pacing=pacing) for name in names
    ]
    policy_options = PolicyOptions(
        idle_ttl_seconds=idle_ttl_seconds, protected_share=protected_share
    )
    if live.against is not None:
        asked = asked_of_server(
            live,
            live.against,
            model=model,
            policy=policies[0],
            policy_options=policy_options,
            seed=seed if is_given(click.get_current_context(), "seed") else None,
        )
        _replay_live(traces[0], asked, json_file)
        return
    plan = replay_plan(
        policies=policies,
        capacities=capacities,
        block_tokens=block_tokens,
        policy_options=policy_options,
        tenants=tenants,
        tiers={"host": host_capacity, "disk": disk_capacity},
        n_replicas=n_replicas,
        routing=routing,
        seed=seed,
        running=running,
    )
    reports = Reports(json_file=json_file, plot_file=plot_file, html_file=html_file)
    if plot_file is not None:
        load_plots()  # where it is missing that is said before the work is done
    results = [replayed(trace, plan, warm_up, n_published) for trace in traces]
    if explains or reports.are_drawn:
        is_drawn = reports.are_drawn
        results = [explained(result, plan.what_if, is_drawn=is_drawn) for result in results]
    click.echo(as_text(results))
    reports.write(results)


def _replay_live(trace: Trace, asked: LiveOptions, json_file: Path | None) -> None:
    """Send a trace to a server and show what came of it; exit with another code where it broke."""
    result = run_to_the_end(replayed_against(trace, asked, lambda line: click.echo(line, err=True)))
    click.echo(live_text(result))
    if json_file is not None:
        save(json_file, live_data(result))
    if result.is_interrupted:
        click.get_current_context().exit(INTERRUPTED)
