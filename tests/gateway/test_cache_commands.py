"""The commands for published prompts, trees and invalidation, against a server process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import commands, main
from gateway.tree_text import as_text
from prefixcache.control import Inspection, NodeShown, TreeShown
from prefixcache.types import PoolCounts
from tests.support.prompts import SYSTEM
from tests.support.servers import running_server
from tests.support.tokenizers import write_chat_tokenizer

PROMPT = f"""
name = "kind"
system = "{SYSTEM}"
ttl_seconds = 600
[[tools]]
type = "function"
function = {{ name = "look_up" }}
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    write_chat_tokenizer(folder / "tiny")
    config = folder / "config.toml"
    config.write_text(f'[server]\nprompts_db = "{folder / "prompts.sqlite3"}"\n', encoding="utf-8")
    arguments = ("--backend", "echo", "--model", str(folder / "tiny"), "--config", str(config))
    with running_server(arguments) as server:
        yield server.url


@pytest.fixture
def run() -> Callable[..., Result]:
    return lambda *arguments: CliRunner().invoke(commands, arguments, catch_exceptions=False)


def test_a_prompt_is_published_shown_and_retired(
    url: str, run: Callable[..., Result], tmp_path: Path
) -> None:
    """From a file to a line of the table to nothing."""
    file = tmp_path / "kind.toml"
    file.write_text(PROMPT, encoding="utf-8")
    published = run("prompts", url, "publish", str(file))
    assert re.search(r"^kind +1 +ready +\d+ +\d+ +all +2\d{3}-", published.output, re.M)
    assert run("prompts", url).output == published.output
    (card,) = json.loads(run("prompts", url, "list", "--json").output)["data"]
    assert card["name"] == "kind"
    assert "kind" in run("tree", url).output or "(system)" in run("tree", url).output
    assert run("prompts", url, "retire", "kind", "1").output == "retired kind version 1\n"
    assert "kind" not in run("prompts", url).output


def test_what_is_invalidated_is_said(url: str, run: Callable[..., Result], tmp_path: Path) -> None:
    """In a line; a prompt's with its version."""
    file = tmp_path / "kind.toml"
    file.write_text(PROMPT.replace("kind", "other", 1), encoding="utf-8")
    run("prompts", url, "publish", str(file))
    done = run("invalidate", url, "prompt", "other")
    assert done.output == "invalidated prompt other version 1\n"
    assert run("invalidate", url, "everything").output == "invalidated everything\n"
    assert run("invalidate", url, "model").output == "invalidated model tiny\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("prompts", "URL", "publish", "nowhere.toml"), 2, "nowhere.toml"),
        (("prompts", "URL", "retire", "nobody"), 1, "404: there is no published prompt"),
        (("prompts", "URL", "retire", "kind", "0"), 2, "0"),
        (("prompts",), 2, "URL"),
        (("invalidate", "URL", "tenant", "nobody"), 1, "404: no tenant 'nobody'"),
        (("invalidate", "URL", "tenant"), 1, "400: name: say which tenant"),
        (("invalidate", "URL", "nothing"), 2, "nothing"),
        (("tree", "http://127.0.0.1:1"), 1, "cannot be asked"),
        (("tree", "URL", "--max-nodes", "0"), 2, "0"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    url: str,
    arguments: tuple[str, ...],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bad input is code 2; what the server refuses is code 1 with its reason."""
    with pytest.raises(SystemExit) as ended:
        main([url if argument == "URL" else argument for argument in arguments])
    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (code, "")
    assert re.fullmatch(r"prefixcache: [^\n]+\n", told.err)
    assert said in told.err


@pytest.mark.parametrize("command", ["prompts", "tree", "invalidate"])
def test_help_ends_with_an_example(command: str, run: Callable[..., Result]) -> None:
    """Help says how the command is used."""
    shown = run(command, "--help").output
    assert re.search(rf"Example: prefixcache {command} http[^\n]+\n\Z", shown)


def node(id: int, parent: int | None, start: int, n_tokens: int, **fields: object) -> NodeShown:
    given = {"pins": 0, "is_retained": False, "hits": 0, "idle_seconds": 5.0} | fields
    return NodeShown(id=id, parent=parent, start_token=start, n_tokens=n_tokens, **given)  # type: ignore[arg-type]  # mixed


def test_a_tree_hangs_to_the_right() -> None:
    """A part stands under the one before it, and its bar begins where that one's ends."""
    nodes = [
        node(0, None, 0, 0),
        node(1, 0, 0, 64),
        node(2, 1, 64, 64, pins=2, idle_seconds=None),
        node(3, 1, 64, 16, is_retained=True, idle_seconds=7200.0),
    ]
    tree = TreeShown(
        tenant="acme", adapter="formal", has_salt=True, is_current=True, published=None, nodes=nodes
    )
    shown = as_text(
        Inspection(
            trees=[tree],
            is_complete=False,
            tenants=[],
            publications=[],
            pool=PoolCounts(free=10, cached=5, held=4),
            longest_free_run=3,
            block_size_tokens=16,
            kv_bytes_per_token=1,
        )
    )
    pool, _, heading, _, *lines = shown.splitlines()
    assert pool == "pool, tokens: 160 free, 80 cached, 64 in use"
    assert heading == "acme: 144 tokens, adapter formal, with a salt"
    first, second, third = (line.index("#") for line in lines[:3])
    assert second == third == first + 20
    assert [line.count("#") for line in lines[:3]] == [20, 20, 5]
    assert "2 running" in lines[1]
    assert re.search(r"in use +2 running$", lines[1])
    assert re.search(r"2\.0 h +kept$", lines[2])
    assert "more" in shown.splitlines()[-1]
