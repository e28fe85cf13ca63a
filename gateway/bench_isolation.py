"""The command `prefixcache bench isolation`."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

import click

from gateway.bench import save
from gateway.client.isolation import Samples, as_data, as_text, found, measure
from gateway.client.own_server import own_server, run_to_the_end
from gateway.keys import hash_of, new_key

_TENANTS = ("a", "b")


@click.command(
    "isolation", epilog="Example: prefixcache bench isolation --samples 250 --json result.json"
)
@click.option("--model", help="As for serve.  [default: the small chat model]")
@click.option(
    "--samples",
    type=click.IntRange(min=2),
    default=250,
    show_default=True,
    help="Of each kind, in turns.",
)
@click.option(
    "--prompt",
    "prompt_tokens",
    type=click.IntRange(min=32),
    default=128,
    show_default=True,
    help="Tokens of each prompt.",
)
@click.option(
    "--bound",
    "bound_percent",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="How much of the median may lie between the two, in percent.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result here.")
def isolation(
    model: str | None,
    samples: int,
    prompt_tokens: int,
    bound_percent: float,
    seed: int,
    json_file: Path | None,
) -> None:
    """Does a tenant's time to first token tell whether another one sent the same prompt?

    A server with two tenants is started for it. B probes prompts that A has or has not sent just
    before, in turns. What counts as no difference is said beforehand: the 90% interval of the
    difference of medians lies within the bound. B's own prompts show what a hit would look like.
    """

    async def run() -> Samples:
        keys = (new_key(secrets.token_bytes), new_key(secrets.token_bytes))
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "config.toml"
            config.write_text(_configuration(keys), encoding="utf-8")
            arguments = ["--config", str(config), *(["--model", model] if model else [])]
            async with own_server(arguments) as own:
                return await measure(
                    own.url,
                    keys,
                    n_pairs=samples,
                    prompt_tokens=prompt_tokens,
                    seed=seed,
                    report=lambda line: click.echo(line, err=True),
                )

    measured = run_to_the_end(run())
    finding = found(measured, bound_share=bound_percent / 100, seed=seed)
    click.echo(as_text(finding))
    if json_file is not None:
        result = {"model": model or "SmolLM2-135M-Instruct", "prompt_tokens": prompt_tokens}
        save(json_file, {**result, "seed": seed, **as_data(finding, measured)})


def _configuration(keys: tuple[str, str]) -> str:
    tables = zip(_TENANTS, keys, strict=True)
    return "".join(f'[tenants.{name}]\nkey_hashes = ["{hash_of(key)}"]\n' for name, key in tables)
