"""What this machine can give: memory within every limit that holds for us, and threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from prefixcache.errors import ConfigError

HOST_SHARE = 0.25  # of the memory that is available once the weights are there
HOST_LIMIT_BYTES = 4 * 1024**3
DEVICE_SHARE = 0.8  # of what a GPU has free then
THREADS_A_CPU = 4
LEAST_MOST_THREADS = 64

_V2_FILES = ("memory.max", "memory.current", "inactive_file")
_V1_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def kv_memory_bytes(asked: int | None, device: torch.device) -> int:
    """Return how much memory the KV store may take: what was asked for, or a share of what is free.

    Raises:
        ConfigError: `asked` is more than there is; nothing has been taken.
    """
    if device.type == "cuda":
        available, share = torch.cuda.mem_get_info(device)[0], DEVICE_SHARE
    else:
        available, share = host_available_bytes(), HOST_SHARE
    if asked is None:
        automatic = int(available * share)
        return automatic if device.type == "cuda" else min(automatic, HOST_LIMIT_BYTES)
    if asked > available:
        reason = f"only {available} bytes are available on {device}; lower it or leave it out"
        raise ConfigError("kv_memory_bytes", asked, reason)
    return asked


def host_available_bytes(root: Path = Path("/")) -> int:
    """Return how much more memory this process may take before something is killed for it.

    The least of what the system has available and of what each control group around this process
    (versions 1 and 2) has left; pages of files that can be dropped count as left.

    Args:
        root: where /proc and /sys are.
    """
    system = int(psutil.virtual_memory().available)
    return max(min([system, *_left_in_groups(root)]), 0)


def require_threads(n_threads: int, n_cpus: int | None) -> None:
    """Raise ConfigError where `n_threads` could only do harm on `n_cpus` CPUs (None: not known)."""
    most = max(THREADS_A_CPU * (n_cpus or 1), LEAST_MOST_THREADS)
    if n_threads > most:
        reason = f"{n_cpus or 'an unknown number of'} CPUs are here; at most {most} make sense"
        raise ConfigError("threads", n_threads, reason)


def use_threads(n_threads: int) -> None:
    """Have torch use so many CPU threads. Raises ConfigError as `require_threads`."""
    require_threads(n_threads, os.cpu_count())
    torch.set_num_threads(n_threads)


def usable_device(wanted: str) -> torch.device:
    """Return the device of that name, after computing something there.

    Raises:
        ConfigError: there is none, or nothing can be computed on it.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = f"cannot be used here: {str(error).splitlines()[0]}"
        raise ConfigError("device", wanted, reason) from error
    return device


def _left_in_groups(root: Path) -> Iterator[int]:
    for folder, files in _groups(root):
        limit, used, droppable = files
        most, taken = _number(folder / limit), _number(folder / used)
        if most is not None and taken is not None:
            yield most - taken + _statistic(folder / "memory.stat", droppable)


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Yield the folders of our memory groups and of those around them, as far as they are seen."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, files = root / "sys/fs/cgroup", _V2_FILES
        elif "memory" in controllers.split(","):
            mount, files = root / "sys/fs/cgroup/memory", _V1_FILES
        else:
            continue
        inner = mount / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(mount):
                yield folder, files


def _number(path: Path) -> int | None:
    """Return the number in a file; None where there is no file or, as in `max`, no limit."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _statistic(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        found, _, value = line.partition(" ")
        if found == name and value.strip().isdigit():
            return int(value)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
