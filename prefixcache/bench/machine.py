"""What a measurement was taken on: kept beside every figure."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import psutil

PACKAGES = ("prefixcache", "torch", "transformers", "tokenizers", "aiohttp")


def machine() -> dict[str, object]:
    """Return processor, cores, memory, system and versions (None: absent), ready for JSON."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 1024**3, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
