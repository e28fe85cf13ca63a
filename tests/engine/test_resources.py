"""What the machine can give, and settings that ask for more than that."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from prefixcache.config import EngineConfig
from prefixcache.engine import Engine
from prefixcache.engine.resources import (
    host_available_bytes,
    kv_memory_bytes,
    require_threads,
    usable_device,
)
from prefixcache.errors import ConfigError
from tests.support.models import Bench

CPU = torch.device("cpu")


def write_group(root: Path, folder: str, files: dict[str, str]) -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / folder / name).write_text(text)


def write_own_groups(root: Path, text: str) -> None:
    write_group(root, "proc/self", {"cgroup": text})


def v2(limit: str, used: int, droppable: int = 0) -> dict[str, str]:
    stat = f"anon 5\ninactive_file {droppable}\nactive_file 7\n"
    return {"memory.max": f"{limit}\n", "memory.current": f"{used}\n", "memory.stat": stat}


def v1(limit: int, used: int, droppable: int = 0) -> dict[str, str]:
    return {
        "memory.limit_in_bytes": f"{limit}\n",
        "memory.usage_in_bytes": f"{used}\n",
        "memory.stat": f"inactive_file 1\ntotal_inactive_file {droppable}\n",
    }


def test_without_a_limit_it_is_what_the_system_has(tmp_path: Path) -> None:
    """No control groups, or groups that limit nothing."""
    system = psutil.virtual_memory().total
    assert 0 < host_available_bytes(tmp_path) <= system
    write_own_groups(tmp_path, "0::/a\n")
    write_group(tmp_path, "sys/fs/cgroup/a", v2("max", 5000))
    assert host_available_bytes(tmp_path) > 5000


def test_the_limit_of_the_own_group_counts(tmp_path: Path) -> None:
    """Version 2: limit less use, and file pages that can be dropped are not in use."""
    write_own_groups(tmp_path, "0::/a\n")
    write_group(tmp_path, "sys/fs/cgroup/a", v2("10000", 6000, 500))
    assert host_available_bytes(tmp_path) == 4500


def test_the_tightest_group_around_counts(tmp_path: Path) -> None:
    """An outer group may have less left than the own one."""
    write_own_groups(tmp_path, "0::/pod/box\n")
    write_group(tmp_path, "sys/fs/cgroup/pod/box", v2("10000", 1000))
    write_group(tmp_path, "sys/fs/cgroup/pod", v2("12000", 9000))
    assert host_available_bytes(tmp_path) == 3000


def test_version_1_is_understood(tmp_path: Path) -> None:
    """Its files have other names and a folder of their own; a box sees its group as the root."""
    write_own_groups(tmp_path, "4:cpu,cpuacct:/x\n3:memory:/docker/abc\n0::/\n")
    write_group(tmp_path, "sys/fs/cgroup/memory", v1(8000, 3000, 200))
    assert host_available_bytes(tmp_path) == 5200


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    """Never less than nothing."""
    write_own_groups(tmp_path, "0::/\n")
    write_group(tmp_path, "sys/fs/cgroup", v2("1000", 6000))
    assert host_available_bytes(tmp_path) == 0


def test_memory_beyond_what_is_there_is_refused_before_it_is_taken() -> None:
    """The start stops with what was asked for and what there is."""
    asked = 2**50
    with pytest.raises(ConfigError, match="are available") as refused:
        kv_memory_bytes(asked, CPU)
    assert refused.value.value == asked
    with pytest.raises(ConfigError, match="kv_memory_bytes"):
        Bench(kv_memory_bytes=asked)


def test_the_automatic_size_is_a_share_of_what_is_there() -> None:
    """Never all of it."""
    assert 0 < kv_memory_bytes(None, CPU) < psutil.virtual_memory().total / 2


@pytest.mark.parametrize(("n_threads", "n_cpus"), [(65, 2), (10**9, 2), (257, 64), (65, None)])
def test_absurd_numbers_of_threads_are_refused(n_threads: int, n_cpus: int | None) -> None:
    """More than four for each CPU, and more than 64, only does harm."""
    with pytest.raises(ConfigError, match="threads"):
        require_threads(n_threads, n_cpus)
    require_threads(64, n_cpus)


@pytest.mark.parametrize("name", ["meta", "nonsense", "cuda:99", ""])
def test_a_device_that_cannot_compute_is_refused(name: str, tmp_path: Path) -> None:
    """Before any model is fetched or loaded, by the setting's name."""
    with pytest.raises(ConfigError, match="device"):
        usable_device(name)
    with pytest.raises(ConfigError, match="device"):
        Engine.load(EngineConfig(device=name, model=str(tmp_path)), env={}, report=print)


def test_a_model_of_one_token_is_refused() -> None:
    """There would be no room for a prompt and an answer."""
    with pytest.raises(ConfigError, match="max_model_tokens"):
        EngineConfig(max_model_tokens=1)
    assert len(Bench(max_model_tokens=2).run([1], 5).token_ids) == 1
