"""The folder of the user's in which fetched and converted models are kept."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from prefixcache.errors import ModelError

Report = Callable[[str], None]  # takes one line for people


def cache_folder(env: Mapping[str, str]) -> Path:
    """Return where models are kept; it need not exist.

    It is $PREFIXCACHE_HOME, else $XDG_CACHE_HOME/prefixcache, else ~/.cache/prefixcache. A
    relative XDG_CACHE_HOME is ignored, as the XDG base directory specification wants.
    """
    if own := env.get("PREFIXCACHE_HOME"):
        return Path(own).expanduser().absolute()
    base = Path(env.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path(env.get("HOME") or Path.home()) / ".cache"
    return base / "prefixcache"


def made_once(target: Path, make: Callable[[Path], None], *, report: Report) -> Path:
    """Return `target`, a folder, after filling it with `make` unless it is there already.

    `make` gets an empty folder beside `target`, which takes its name when all is written: a
    folder that is there is whole, and what an interrupted run left is removed by the next. Of
    several processes one makes it and the others wait.

    Raises:
        ModelError: the cache folder cannot be written, or what `make` raises.
    """
    if target.exists():
        return target
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(target, report):
            if not target.exists():
                _make(target, make)
    except OSError as error:
        raise ModelError(
            f"{target} cannot be made: {error}. Set PREFIXCACHE_HOME to a folder that can be"
            " written and has room."
        ) from error
    return target


def _make(target: Path, make: Callable[[Path], None]) -> None:
    prefix = f".{target.name}.part-"
    for found in target.parent.iterdir():
        if found.name.startswith(prefix):  # of an interrupted run: we hold the lock
            shutil.rmtree(found)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as outer:
        part = Path(outer) / target.name
        part.mkdir(mode=0o700)
        make(part)
        part.rename(target)


@contextmanager
def _locked(target: Path, report: Report) -> Iterator[None]:
    """Hold the lock on `target` among processes. The system frees it when its holder dies."""
    lock = os.open(target.parent / f".{target.name}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"waiting for another process that prepares {target.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
