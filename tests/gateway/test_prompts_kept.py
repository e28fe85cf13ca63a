"""Published prompts outlive a gateway, follow its tenants, and tell what went wrong."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gateway.backends.echo import EchoBackend
from gateway.config import GatewayConfig, Settings
from gateway.errors import ChangeRefusedError, NotReadyError
from gateway.prompts_db import PromptsDb, PromptsFileError
from gateway.published import PublishedPrompt
from gateway.tenants import TenantConfig
from gateway.usage_db import UsageDb
from prefixcache.control import Publication, PublicationState
from tests.support.gateways import MODEL
from tests.support.prompts import PROMPT, PROMPTS, SYSTEM, asked, cached, code_of, publish, request
from tests.support.tenancy import ACME, ADMIN, BETA, Keyed, bearer, keyed_gateway, keyed_settings
from tests.support.tokenizers import write_chat_tokenizer
from tests.support.waiting import until


async def until_ready(keyed: Keyed, *names: str) -> None:
    """Wait until all that is published is matchable, and is what is named."""
    prompts = keyed.gateway.service.prompts
    await until(
        lambda: (
            [each.prompt.name for each in prompts.entries(tenant=None) if each.state] == list(names)
        ),
        seconds=20,
    )


class Stubborn(EchoBackend):
    """An echo that refuses publications as it is told to."""

    refusal: Exception | None = None

    async def publish(self, publication: Publication) -> PublicationState:
        if self.refusal is not None:
            raise self.refusal
        return await super().publish(publication)


async def test_a_restart_publishes_again(tmp_path: Path) -> None:
    """What was published is found after a start, and what was retired stays so, by its number."""
    write_chat_tokenizer(tmp_path / "model")
    file = tmp_path / "prompts.sqlite3"
    async with keyed_gateway(
        EchoBackend(tmp_path / "model"), prompts_db=PromptsDb.open(file)
    ) as keyed:
        card = await publish(keyed, tenants=["acme"], ttl_seconds=600)
        await publish(keyed, name="gone", tenants=["acme"])
        await request(keyed, "DELETE", f"{PROMPTS}/gone")
        await publish(keyed, name="short", ttl_seconds=1, system="Not for long. " * 20)
        assert file.stat().st_mode & 0o077 == 0
    async with keyed_gateway(
        EchoBackend(tmp_path / "model"), prompts_db=PromptsDb.open(file)
    ) as keyed:
        keyed.wall_clock.now += 5
        keyed.gateway.service.prompts.look_at_lifetimes()
        await until_ready(keyed, "kind")
        assert await cached(keyed, ACME, asked("x", system=SYSTEM)) == card["n_tokens"]
        assert await cached(keyed, BETA, asked("x", system=SYSTEM)) == 0
        assert (await request(keyed, "GET", f"{PROMPTS}/kind"))[1] == card
        body = asked(prompt={"name": "gone"})
        told = [
            code_of(await request(keyed, "POST", "/v1/chat/completions", body, key))
            for key in (ACME, BETA)
        ]
        assert told == [(404, "retired_version"), (404, "prompt_not_found")]
        assert (await publish(keyed, name="gone"))["version"] == 2
        keyed.wall_clock.now += 600
        keyed.gateway.service.prompts.look_at_lifetimes()
        await until_ready(keyed, "gone")


async def test_the_text_of_what_is_retired_is_not_kept(tmp_path: Path) -> None:
    """Neither in a row nor elsewhere in the file."""
    file = tmp_path / "prompts.sqlite3"
    db = PromptsDb.open(file)
    prompt = PublishedPrompt(name="a", version=1, system="a secret text", created=0.0)
    db.put(prompt)
    db.retire(prompt)
    db.close()
    assert b"secret" not in file.read_bytes()


async def test_a_start_does_not_wait_for_prompts(tmp_path: Path) -> None:
    """One that cannot be read is told as failed; it is read when that has passed."""
    write_chat_tokenizer(tmp_path / "model")
    file = tmp_path / "prompts.sqlite3"
    db = PromptsDb.open(file)
    db.put(PublishedPrompt(name="kind", version=3, system=SYSTEM, created=0.0))
    backend = Stubborn(tmp_path / "model")
    backend.refusal = ChangeRefusedError("no room")
    async with keyed_gateway(backend, prompts_db=db) as keyed:
        prompts = keyed.gateway.service.prompts
        await until(lambda: prompts.entries(tenant=None)[0].trouble, seconds=10)
        _, card = await request(keyed, "GET", f"{PROMPTS}/kind")
        assert (card["status"], card["trouble"], card["n_tokens"]) == ("failed", "no room", None)
        assert await cached(keyed, ACME, asked(prompt={"name": "kind"})) == 0
        backend.refusal = None
        prompts.settle()
        await until_ready(keyed, "kind")
        assert "trouble" not in (await request(keyed, "GET", f"{PROMPTS}/kind"))[1]


@pytest.mark.parametrize("error", [ChangeRefusedError("no room"), NotReadyError("not now")])
async def test_a_refused_version_changes_nothing(tmp_path: Path, error: Exception) -> None:
    """The version before it is found as ever, and the number is free."""
    write_chat_tokenizer(tmp_path)
    backend = Stubborn(tmp_path)
    async with keyed_gateway(backend) as keyed:
        card = await publish(keyed)
        backend.refusal = error
        answer = await request(keyed, "POST", PROMPTS, {**PROMPT, "system": "Other. " * 30})
        assert answer[0] in (400, 503)
        assert await cached(keyed, ACME, asked("x", system=SYSTEM)) == card["n_tokens"]
        backend.refusal = None
        assert (await publish(keyed))["version"] == 2


async def test_what_cannot_be_remembered_is_not_published(tmp_path: Path) -> None:
    """When the file cannot be written the answer says so, and nobody finds the prompt."""
    write_chat_tokenizer(tmp_path)
    db = PromptsDb.open(None)
    async with keyed_gateway(EchoBackend(tmp_path), prompts_db=db) as keyed:
        db.close()
        assert (await request(keyed, "POST", PROMPTS, PROMPT))[0] == 500
        assert await cached(keyed, ACME, asked("x", system=SYSTEM)) == 0


async def test_a_tenant_that_may_no_more_finds_it_no_more(tmp_path: Path) -> None:
    """From the answer to a reload on; the others find it again."""
    write_chat_tokenizer(tmp_path)
    running = GatewayConfig(port=0, served_model_name=MODEL)
    settings = keyed_settings(running)

    def read() -> Settings:
        return settings

    async with keyed_gateway(EchoBackend(tmp_path), read_settings=read) as keyed:
        card = await publish(keyed)
        settings = keyed_settings(running, TenantConfig(prompts=()))
        assert (await keyed.gateway.post("/admin/reload", None, **bearer(ADMIN)))[0] == 200
        assert await cached(keyed, ACME, asked("x", system=SYSTEM)) == 0
        await until_ready(keyed, "kind")
        assert await cached(keyed, BETA, asked("x", system=SYSTEM)) == card["n_tokens"]


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """The accounts' file is none of prompts, and no file at all is not either."""
    UsageDb.open(tmp_path / "usage").close()
    with pytest.raises(PromptsFileError, match="no file of published prompts"):
        PromptsDb.open(tmp_path / "usage")
    (tmp_path / "text").write_text("x" * 2000)
    with pytest.raises(PromptsFileError, match="prompts_db"):
        PromptsDb.open(tmp_path / "text")
    with pytest.raises(PromptsFileError):
        PromptsDb.open(tmp_path)
    db = PromptsDb.open(tmp_path / "prompts")
    with sqlite3.connect(tmp_path / "prompts") as other:
        other.execute("INSERT INTO prompts VALUES ('a', 1, '{', 'null')")
    other.close()
    with pytest.raises(PromptsFileError, match="'a'"):
        db.read()
    db.close()
