"""What server it is that answers at a URL: nothing is measured before that is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
import msgspec

from gateway.client.listeners import Listener, listener_at
from gateway.client.streaming import BenchError

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of server: how it is told from others, and what keeps its answers going."""

    name: str
    route: str
    version: Callable[[Json], str | None]  # what `route` says of it; None: another kind
    owner: str | None  # of its models; None: whoever
    command_words: tuple[str, ...]  # one of them stands in its process's command line
    extra: Json  # fields of a request


def _own(answer: Json) -> str | None:
    return str(answer.get("version", "unknown")) if answer.get("status") == "alive" else None


def _named(field: str) -> Callable[[Json], str | None]:
    return lambda answer: str(answer[field]) if answer.get(field) else None


def _transformers(answer: Json) -> str | None:
    paths = answer.get("paths")
    return "unknown" if isinstance(paths, dict) and "/load_model" in paths else None


KINDS = (
    Kind(
        name="prefixcache",
        route="/health",
        version=_own,
        owner="prefixcache",
        command_words=("prefixcache", "gateway.cli"),
        extra={"ignore_eos": True},
    ),
    Kind(
        name="vllm",
        route="/version",
        version=_named("version"),
        owner="vllm",
        command_words=("vllm",),
        extra={"ignore_eos": True},
    ),
    Kind(
        name="llama.cpp",
        route="/props",
        version=_named("build_info"),
        owner="llamacpp",
        command_words=("llama",),
        extra={"ignore_eos": True, "cache_prompt": True},
    ),
    Kind(
        name="transformers",
        route="/openapi.json",
        version=_transformers,
        owner=None,
        command_words=("transformers",),
        extra={},
    ),
)

ANY_KIND = Kind(
    name="openai-compatible",
    route="/v1/models",
    version=lambda answer: "unknown" if isinstance(answer.get("data"), list) else None,
    owner=None,
    command_words=(),
    extra={},
)


@dataclass(frozen=True, slots=True)
class Identity:
    """What is measured. `listener` is None on another machine, or where it cannot be seen."""

    kind: Kind
    version: str
    model: str
    listener: Listener | None

    @property
    def pid(self) -> int | None:
        """The process that is measured, where it can be seen."""
        return None if self.listener is None else self.listener.pid

    def __str__(self) -> str:
        process = self.listener and f"process {self.listener.pid}: {self.listener.command}"
        return (
            f"{self.kind.name} (version {self.version}), model {self.model},"
            f" {process or 'process unseen'}"
        )


async def identify(
    session: aiohttp.ClientSession,
    url: str,
    *,
    model: str | None = None,
    pid: int | None = None,
    takes_any: bool = False,
) -> Identity:
    """Return what answers at `url`, from its routes and from the process that has the port.

    Args:
        session: connections to use.
        url: the server's base address.
        model: the served model to measure; None where there is only one.
        pid: the process that must have the port, or have started what has it; without it, a
            process on this machine must look like its kind of server.
        takes_any: whether a server of no known kind is taken as it is, whatever process has
            the port: for those whose figures are not compared with others'.

    Raises:
        BenchError: it cannot be told, two signs disagree, or the model cannot be chosen.
    """
    listener = listener_at(url)
    card = _card(url, await _json(session, f"{url}/v1/models"), model)
    kind, version = await _kind(session, url, card.get("owned_by"), takes_any=takes_any)
    if not takes_any:
        _check_process(url, kind, listener, pid)
    return Identity(kind, version, str(card["id"]), listener)


def check_unchanged(url: str, identity: Identity) -> None:
    """Raise BenchError when another process than that of `identity` has the port by now."""
    if identity.listener is not None and listener_at(url) != identity.listener:
        raise BenchError(f"{url} was served by process {identity.listener.pid}; it no longer is")


async def _kind(
    session: aiohttp.ClientSession, url: str, owner: object, *, takes_any: bool
) -> tuple[Kind, str]:
    found = []
    for kind in KINDS:
        version = kind.version(await _json(session, url + kind.route))
        if version is not None and kind.owner in {None, owner}:
            found.append((kind, version))
    if len(found) != 1 and takes_any:
        return ANY_KIND, "unknown"
    if len(found) != 1:
        names = " and ".join(kind.name for kind, _ in found) or "no known kind of server"
        raise BenchError(f"{url} answers like {names}; it is not measured")
    return found[0]


def _check_process(url: str, kind: Kind, listener: Listener | None, pid: int | None) -> None:
    if pid is not None:
        if listener is None or not listener.descends_from(pid):
            other = listener and f"process {listener.pid} ({listener.command})"
            raise BenchError(f"{url} is served by {other or 'an unseen process'}, not by {pid}")
    elif listener and not any(word in listener.command.lower() for word in kind.command_words):
        raise BenchError(
            f"{url} answers like {kind.name}, but process {listener.pid} is {listener.command!r};"
            " name the process with --pid if it is the right one"
        )


def _card(url: str, listing: Json, model: str | None) -> Json:
    cards = listing.get("data")
    known: Sequence[object] = cards if isinstance(cards, list) else ()
    named = {card["id"]: card for card in known if isinstance(card, dict) and card.get("id")}
    if model is None and len(named) == 1:
        return next(iter(named.values()))
    if model in named:
        return named[model]
    raise BenchError(f"{url} lists the models {sorted(named)}; choose one of them with --model")


async def _json(session: aiohttp.ClientSession, url: str) -> Json:
    """Return the object that a GET answers with; empty where it is refused or no object."""
    try:
        async with session.get(url) as response:
            answer = msgspec.json.decode(await response.read()) if response.status == 200 else {}
    except msgspec.DecodeError:
        return {}
    except (aiohttp.ClientError, TimeoutError) as error:
        raise BenchError(f"{url} does not answer: {type(error).__name__} {error}") from error
    return answer if isinstance(answer, dict) else {}
