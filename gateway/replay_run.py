"""What `prefixcache replay` does with a trace, and where its reports go."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click

from gateway.bench import save
from prefixcache.traces import ReplayPlan, ReplayResult, Trace, WhatIf, replay
from prefixcache.traces.curve_points import curve_points
from prefixcache.traces.page import as_page
from prefixcache.traces.prefix_ids import tenants_apart
from prefixcache.traces.report import as_data, skipped_lines
from prefixcache.traces.whatif.published import worth_publishing
from prefixcache.traces.why import explain


def replayed(
    trace: Trace, plan: ReplayPlan, warm_up: tuple[int, bool], n_published: int | None
) -> ReplayResult:
    """Replay a trace with a progress bar, and tell of rows that were skipped.

    Args:
        warm_up: an amount, and whether it is a share in percent.
        n_published: so many prefixes that tenants have in common are published.
    """
    amount, is_share = warm_up
    if is_share:
        amount = amount * sum(1 for _ in trace.read()) // 100
    plan = replace(plan, warm_up_requests=amount)
    if n_published is not None:
        plan = replace(plan, what_if=_publishing(trace, plan.what_if, n_published))
    read_bytes: dict[Path, int] = {}
    with click.progressbar(
        length=trace.n_bytes, label=trace.name, file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:

        def progress(file: Path, n_bytes: int) -> None:
            bar.update(n_bytes - read_bytes.get(file, 0))
            read_bytes[file] = n_bytes

        result = replay(trace, plan, progress=progress)
    for line in skipped_lines(trace.name, result.report):
        click.echo(line, err=True)
    return result


def _publishing(trace: Trace, what_if: WhatIf, n_published: int) -> WhatIf:
    prompts = worth_publishing(trace.read(), n_published)
    if not prompts:
        raise click.UsageError(f"{trace.name}: no tenants in it have a prefix in common to publish")
    return replace(what_if, published=prompts)


def explained(result: ReplayResult, what_if: WhatIf, *, is_drawn: bool) -> ReplayResult:
    """Read the trace once more, to explain it and, if it is drawn, for its curves."""
    if not is_drawn:
        return replace(result, why=explain(result.trace.read()))
    requests = list(result.trace.read())
    why = explain(requests)
    if what_if.is_isolated:
        requests = [tenants_apart(request) for request in requests]
    return replace(result, why=why, curve=curve_points(requests))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """The files that a replay is written to, beside the table; None: not this one."""

    json_file: Path | None
    plot_file: Path | None
    html_file: Path | None

    @property
    def are_drawn(self) -> bool:
        """Whether one of them has curves."""
        return self.plot_file is not None or self.html_file is not None

    def write(self, results: Sequence[ReplayResult]) -> None:
        """Write them. Raises FileError where a file cannot be."""
        plot_file, html_file = self.plot_file, self.html_file
        if self.json_file is not None:
            save(self.json_file, as_data(results))
        if plot_file is not None:
            written(plot_file, lambda: load_plots().save_plots(results, plot_file))
        if html_file is not None:
            page = as_page(results, command=" ".join(["prefixcache", *sys.argv[1:]]))
            written(html_file, lambda: html_file.write_text(page, encoding="utf-8"))


def load_plots() -> ModuleType:
    """Return the module that draws; a usage error where matplotlib is not installed."""
    try:
        return import_module("prefixcache.traces.plots")
    except ImportError as error:
        reason = f"plots need {error.name}; pip install 'prefixcache[plots]', or use --html"
        raise click.UsageError(reason) from error


def written(file: Path, write: Callable[[], object]) -> None:
    """Write a file; what goes wrong is a usage error that names it."""
    try:
        write()
    except OSError as error:
        raise click.FileError(str(file), error.strerror or str(error)) from error
    except ValueError as error:
        raise click.FileError(str(file), str(error)) from error
