"""What the routes that machines watch tell."""

from __future__ import annotations

from importlib import metadata

import prefixcache
from tests.support.gateways import Gateway


async def test_health_tells_the_version(gateway: Gateway) -> None:
    """It is the installed package's, and the library's own word for it."""
    async with gateway.http.get(gateway.url + "/health") as reply:
        assert await reply.json() == {"status": "alive", "version": prefixcache.__version__}
    assert prefixcache.__version__ == metadata.version("prefixcache")
