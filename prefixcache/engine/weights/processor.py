"""Whether this machine's processor multiplies bfloat16 faster than float32."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

import torch

_CPU_INFO = Path("/proc/cpuinfo")
_FAST_VECTORS = "AMD"  # within what the maker calls itself


@dataclass(frozen=True, slots=True)
class Processor:
    """What a processor says of itself, as far as 16-bit products depend on it."""

    maker: str  # such as AuthenticAMD or GenuineIntel; empty where it is not known
    has_bfloat16_vectors: bool  # AVX512 with bf16
    has_tiles: bool  # AMX; a virtual machine may hide it

    @property
    def gains_from_bfloat16(self) -> bool:
        """Whether products in bfloat16 take clearly less time than in float32.

        By what is known of processors, not by a measurement: two loads on one machine must
        choose alike. Tiles gain by far. AMD's vectors take twice as many bfloat16 numbers
        at a time; Intel's have the instruction but gain nothing by it.
        Source: prefixcache/design/0022-fewer-fixed-costs.md.
        """
        return self.has_tiles or (self.has_bfloat16_vectors and _FAST_VECTORS in self.maker)

    @classmethod
    def here(cls) -> Processor:
        """Return what this machine has."""
        return cls(
            maker=_maker(_CPU_INFO),
            has_bfloat16_vectors=torch.cpu._is_avx512_bf16_supported(),
            has_tiles=torch.cpu._is_amx_tile_supported(),
        )


def _maker(cpu_info: Path) -> str:
    if cpu_info.exists():
        for line in cpu_info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "vendor_id":
                return value.strip()
    return platform.processor()
