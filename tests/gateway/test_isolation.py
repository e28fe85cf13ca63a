"""May a tenant learn what another sent? Proven with keys over HTTP, on an echo and a real engine.

What a probe's answer can tell is its cached tokens; what its time can tell is the work that it
causes: tokens computed and steps of the engine. Both are the same whether or not the other tenant
sent the prompt before. How long steps take is measured by `prefixcache bench isolation`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio

from gateway.backends.base import Backend
from gateway.backends.echo import EchoBackend
from gateway.backends.local import LocalBackend
from prefixcache.config import EngineConfig
from tests.support.models import write_tiny_model
from tests.support.prompts import PROMPTS, asked, cached, publish, request
from tests.support.tenancy import ACME, BETA, Keyed, keyed_gateway
from tests.support.tokenizers import write_chat_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUMBERS = count()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["echo", "local"])
async def keyed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Keyed]:
    folder = tmp_path_factory.mktemp("model")
    backend: Backend
    if request.param == "echo":
        write_chat_tokenizer(folder)
        backend = EchoBackend(folder)
    else:
        write_tiny_model(folder)
        config = EngineConfig(model=str(folder), kv_memory_bytes=8 << 20, threads=1)
        backend = LocalBackend(config)
    async with keyed_gateway(backend) as running:
        yield running


def text() -> str:
    """Return the text of a prompt whose first block nobody has sent."""
    return f"{next(NUMBERS):04d} is the number of this prompt. " * 2


async def work(keyed: Keyed, key: str, system: str) -> tuple[int, int, int]:
    """Send a prompt; return what was cached of it, and the tokens and steps that it took."""
    before = keyed.gateway.backend.stats()
    found = await cached(keyed, key, asked("x", system=system))
    after = keyed.gateway.backend.stats()
    n_tokens = after.computed_tokens_total - before.computed_tokens_total
    return found, n_tokens, after.steps_total - before.steps_total


async def test_a_tenant_finds_its_own(keyed: Keyed) -> None:
    """Without this a cache that never hits would pass the rest."""
    system = text()
    nothing, first, _ = await work(keyed, ACME, system)
    found, second, _ = await work(keyed, ACME, system)
    assert nothing < 16 < found
    assert second < first


async def test_another_tenant_finds_nothing_and_works_as_much(keyed: Keyed) -> None:
    """Tokens computed and steps of a probe are equal with and without the other's request."""
    warm, sent, unsent = text(), text(), text()
    await work(keyed, BETA, warm)
    await work(keyed, ACME, sent)
    probes = [await work(keyed, BETA, system) for system in (sent, unsent)]
    assert probes[0] == probes[1]
    assert probes[0][0] < 16
    assert probes[0][1] > 16


async def test_a_salt_is_no_way_in(keyed: Keyed) -> None:
    """The other's salt gives nothing either: it narrows what is one's own."""
    body = asked("x", system=text(), cache_salt="known")
    await cached(keyed, ACME, body)
    assert await cached(keyed, BETA, body) < 16


async def test_what_is_published_is_found_by_both_and_is_the_same_work(keyed: Keyed) -> None:
    """Who asks first matters to nobody: the system has read it for all."""
    system = text()
    card = await publish(keyed, system=system)
    first = await work(keyed, ACME, system)
    second = await work(keyed, BETA, system)
    assert first == second
    assert first[0] == card["n_tokens"]
    assert (await request(keyed, "DELETE", f"{PROMPTS}/kind"))[0] == 200


async def test_a_tenant_it_is_not_for_works_as_if_it_were_not(keyed: Keyed) -> None:
    """A probe costs the same whether its text is published to another tenant or to nobody."""
    published, nobodys = text(), text()
    await work(keyed, BETA, text())
    await publish(keyed, system=published, tenants=["acme"])
    await work(keyed, ACME, published)
    probes = [await work(keyed, BETA, system) for system in (published, nobodys)]
    assert probes[0] == probes[1]
    assert (await request(keyed, "DELETE", f"{PROMPTS}/kind"))[0] == 200
