"""What is kept of freed memory."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from prefixcache.engine.allocator import keep_freed_memory

# Pages that a process gets while tensors like a long prompt's are made and freed.
PROGRAM = """
import os, resource, sys
import torch
from prefixcache.engine.allocator import keep_freed_memory

if "keep" in sys.argv:
    assert keep_freed_memory({})

def layer():
    tensors = [torch.ones(n * 2**18) for n in (2, 4, 12, 12, 6)]  # megabytes
    return [tensor + 1 for tensor in tensors]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

torch.set_num_threads(1)
for _ in range(3):
    layer()
before = faults()
for _ in range(8):
    layer()
print(faults() - before)
"""
PAGES_OF_ONE_LAYER = 2 * 36 * 2**20 // 4096

only_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is not glibc's")


def faults_of(*arguments: str) -> int:
    """Return how many pages a process of its own got in eight layers.

    It begins with each tensor mapped by itself: by default that depends on where things lie.
    """
    command = [sys.executable, "-c", PROGRAM, *arguments]
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env, timeout=300)
    return int(done.stdout)


@only_glibc
def test_freed_memory_is_used_again() -> None:
    """Tensors that are made and freed over and over cost no new pages, as they do else."""
    assert faults_of("keep") < PAGES_OF_ONE_LAYER // 2
    assert faults_of() > PAGES_OF_ONE_LAYER


@pytest.mark.parametrize(
    "env",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"MALLOC_MMAP_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    ],
)
def test_a_process_set_up_otherwise_is_left_alone(env: dict[str, str]) -> None:
    """Whoever has set malloc has said what he wants."""
    assert not keep_freed_memory(env)
