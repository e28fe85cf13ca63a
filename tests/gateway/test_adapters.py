"""Adapters through the gateway: a real worker, asked for by name as models are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import psutil
import pytest
import pytest_asyncio
from click.testing import CliRunner

from gateway.backends.local import LocalBackend
from gateway.cli import commands
from gateway.config import load_config
from gateway.errors import BadModelError, ChangeRefusedError, NotReadyError
from prefixcache.config import EngineConfig
from tests.support.adapters import write_adapter
from tests.support.architectures import tiny_model
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.inline import InlineBackend
from tests.support.models import write_tiny_model
from tests.support.waiting import until


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and the adapters `one` and `two` for it."""
    root = tmp_path_factory.mktemp("served")
    (root / "model").mkdir()
    write_tiny_model(root / "model")
    for seed, name in enumerate(("one", "two")):
        write_adapter(root / name, tiny_model("llama"), seed=seed)
    return root


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(folders: Path) -> AsyncIterator[Gateway]:
    config = EngineConfig(
        model=str(folders / "model"),
        kv_memory_bytes=8 << 20,
        threads=1,
        adapters={"one": str(folders / "one")},
    )
    backend = LocalBackend(config, restart_delay_seconds=0.01)
    async with running_gateway(backend) as gateway:
        yield gateway


async def ask(gateway: Gateway, model: str, prompt: str = "rain " * 40) -> tuple[str, int, str]:
    """Return an answer's text, what was cached of its prompt, and who gave it."""
    answer = await gateway.openai.completions.create(
        model=model, prompt=prompt, max_tokens=8, temperature=0
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    return answer.choices[0].text, cached, answer.model


@pytest.mark.asyncio(loop_scope="module")
async def test_adapters_are_models_of_their_own(gateway: Gateway) -> None:
    """Each is listed with its parent and answers by its name, with a cache of its own."""
    _, listed = await _get(gateway, "/v1/models")
    assert isinstance(listed["data"], list)
    assert [(card["id"], card.get("parent")) for card in listed["data"]] == [
        (MODEL, None),
        ("one", MODEL),
    ]
    assert (await _get(gateway, "/v1/models/one"))[1]["parent"] == MODEL
    with pytest.raises(openai.NotFoundError, match=f"'{MODEL}', 'one' are"):
        await ask(gateway, "two")
    plain, _, _ = await ask(gateway, MODEL)
    adapted, cached, name = await ask(gateway, "one")
    assert (cached, name) == (0, "one")
    assert adapted != plain
    again, cached, _ = await ask(gateway, "one")
    assert again == adapted
    assert cached > 0
    chat = await gateway.openai.chat.completions.create(
        model="one", messages=[{"role": "user", "content": "rain"}], max_tokens=4
    )
    assert chat.model == "one"


@pytest.mark.asyncio(loop_scope="module")
async def test_adapters_come_and_go_while_the_server_runs(gateway: Gateway, folders: Path) -> None:
    """What is loaded is served at once, outlives a worker's death, and is gone when unloaded."""
    backend = gateway.backend
    assert isinstance(backend, LocalBackend)
    gateway.service.use_info(await backend.load_adapter("two", str(folders / "two")))
    two, _, _ = await ask(gateway, "two")
    assert two != (await ask(gateway, "one"))[0]
    with pytest.raises(ChangeRefusedError, match="nowhere"):
        await backend.load_adapter("three", "/nowhere")
    for child in psutil.Process().children():
        child.kill()
    await until(lambda: not backend.is_ready)
    with pytest.raises(NotReadyError):
        await backend.load_adapter("one", str(folders / "one"))
    await until(lambda: backend.is_ready)
    assert await ask(gateway, "two") == (two, 0, "two")
    gateway.service.use_info(await backend.unload_adapter("two"))
    with pytest.raises(openai.NotFoundError):
        await ask(gateway, "two")


async def test_weights_are_reloaded_while_the_server_runs(folders: Path, tmp_path: Path) -> None:
    """The call returns when the new weights serve; requests that ran meanwhile are whole."""
    write_tiny_model(tmp_path)
    backend = LocalBackend(
        EngineConfig(model=str(tmp_path), kv_memory_bytes=8 << 20, threads=1),
    )
    async with running_gateway(backend) as gateway:
        old, _, _ = await ask(gateway, MODEL)
        model = tiny_model("llama")
        for parameter in model.parameters():
            parameter.data = parameter.data.flip(0)
        model.save_pretrained(tmp_path)
        running = asyncio.create_task(ask(gateway, MODEL))
        await until(lambda: backend.stats().running or running.done())
        gateway.service.use_info(await backend.reload())
        assert (await running)[0] == old
        new, cached, _ = await ask(gateway, MODEL)
        assert cached == 0
        assert new != old


async def test_an_adapter_cannot_have_the_models_name(folders: Path) -> None:
    """Which of the two a request means could not be told."""
    adapter = {MODEL: str(folders / "one")}
    backend = InlineBackend.load(folders / "model", 8 << 20, **adapter)
    with pytest.raises(BadModelError, match=MODEL):
        async with running_gateway(backend):
            pass


@pytest.mark.parametrize("given", ["one", "=folder", "one=", ""])
def test_adapter_flags_are_pairs(given: str) -> None:
    """What is not NAME=FOLDER is a usage error that shows it."""
    result = CliRunner().invoke(commands, ["serve", "--adapter", given])
    assert result.exit_code == 2
    assert "NAME=FOLDER" in result.output


def test_an_adapter_flag_is_given_once() -> None:
    """Two folders for one name are a usage error."""
    result = CliRunner().invoke(commands, ["serve", "--adapter", "a=b", "--adapter", "a=c"])
    assert result.exit_code == 2
    assert "twice" in result.output


def test_adapters_stand_in_the_config_file(tmp_path: Path) -> None:
    """A table of folders by name; a name that cannot be one is refused."""
    file = tmp_path / "server.toml"
    file.write_text('[engine.adapters]\nformal = "./formal"\n"a/b" = "c"\n', encoding="utf-8")
    assert load_config(file).engine.adapters == {"formal": "./formal", "a/b": "c"}


async def _get(gateway: Gateway, path: str) -> tuple[int, dict[str, object]]:
    async with gateway.http.get(gateway.url + path) as response:
        return response.status, await response.json()
