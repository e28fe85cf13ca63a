"""The structure that DESIGN's shape and the style guide promise, read from the sources."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted([*ROOT.glob("prefixcache/**/*.py"), *ROOT.glob("gateway/**/*.py")])
BASE = {"prefixcache.errors", "prefixcache.types", "prefixcache.config"}

# layer -> the layers that it may import; BASE is open to all
MAY_IMPORT: dict[str, set[str]] = {
    "prefixcache.errors": set(),
    "prefixcache.types": set(),
    "prefixcache.config": set(),
    "prefixcache.control": set(),
    "prefixcache.wire": {"prefixcache.control"},
    "prefixcache.index": set(),
    "prefixcache.text": set(),
    "prefixcache.tiers": {"prefixcache.index"},
    "prefixcache.kv": {"prefixcache.index"},
    "prefixcache.engine": {
        "prefixcache.index",
        "prefixcache.tiers",
        "prefixcache.kv",
        "prefixcache.text",
        "prefixcache.control",
        "prefixcache.wire",
    },
    "prefixcache.traces": {"prefixcache.index"},
    "prefixcache.plan": {"prefixcache.engine"},
    "prefixcache.bench": {
        "prefixcache.index",
        "prefixcache.traces",
        "prefixcache.tiers",
        "prefixcache.kv",
        "prefixcache.text",
        "prefixcache.engine",
    },
    "gateway": {
        "prefixcache.index",
        "prefixcache.tiers",
        "prefixcache.text",
        "prefixcache.control",
        "prefixcache.wire",
        "prefixcache.traces",
        "prefixcache.plan",
        "prefixcache.bench",
    },
}
WITH_TORCH = ("prefixcache.kv", "prefixcache.engine")
WITH_TRANSFORMERS = (*WITH_TORCH, "prefixcache.plan")
PACKAGES = {"prefixcache", "gateway"}  # their own __init__ lists public names of any layer


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[str]:
    """Yield every module that a source imports, wherever the import stands in it."""
    names = {name_of(module) for module in MODULES}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in names else node.module


def layer_of(module: str) -> str | None:
    matches = [layer for layer in MAY_IMPORT if module == layer or module.startswith(f"{layer}.")]
    return max(matches, key=len, default=None)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    """A module imports its own layer and those below it, never one above."""
    name = name_of(path)
    if name in PACKAGES:
        return
    own = layer_of(name)
    assert own is not None, f"{name} belongs to no layer: add it to MAY_IMPORT"
    for target in imports_of(path):
        if target.split(".")[0] not in PACKAGES or target in PACKAGES:
            continue
        layer = layer_of(target)
        assert layer is not None, f"{name} imports {target}, which belongs to no layer"
        if layer != own and layer not in BASE:
            assert layer in MAY_IMPORT[own], f"{name} imports {target}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_torch_stays_in_its_layers(path: Path) -> None:
    """Only the KV store and the engine import torch; plans read transformers' configurations."""
    roots = {target.split(".")[0] for target in imports_of(path)}
    if "torch" in roots:
        assert name_of(path).startswith(WITH_TORCH)
    if "transformers" in roots:
        assert name_of(path).startswith(WITH_TRANSFORMERS)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_stand_at_the_top(path: Path) -> None:
    """No import hides inside a function to dodge a circle."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = [n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)]
            assert not inner, f"{name_of(path)}.{node.name} imports inside"


def test_no_import_cycles() -> None:
    """The modules can be put in an order in which each imports only earlier ones."""
    names = {name_of(path) for path in MODULES}
    graph = {
        name_of(path): {target for target in imports_of(path) if target in names} - {name_of(path)}
        for path in MODULES
        if path.name != "__init__.py"
    }
    while graph:
        free = {name for name, needs in graph.items() if not needs & graph.keys()}
        assert free, f"a cycle among {sorted(graph)}"
        graph = {name: needs for name, needs in graph.items() if name not in free}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_stay_short(path: Path) -> None:
    """One idea a module: never over 400 lines."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize(
    "module",
    [
        "prefixcache",
        "prefixcache.index",
        "prefixcache.tiers",
        "prefixcache.text",
        "prefixcache.traces",
        "gateway.app",
        "gateway.bench_policies",
        "gateway.bench_index",
        "gateway.replay",
    ],
)
def test_torch_is_not_loaded_by(module: str) -> None:
    """The index, the text side and the gateway start without torch and transformers."""
    code = f"import {module}, sys; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_each_design_record_has_a_number_of_its_own() -> None:
    """Records are named by number elsewhere, and their titles begin with it."""
    records = sorted(ROOT.glob("prefixcache/design/*.md"))
    numbers = [record.name.split("-")[0] for record in records]
    assert len(set(numbers)) == len(numbers)
    for number, record in zip(numbers, records, strict=True):
        assert record.read_text(encoding="utf-8").startswith(f"# {number}: ")


def test_design_records_that_are_named_exist() -> None:
    """A path to a record, in code or in the manual, leads to it."""
    sources = [*MODULES, *ROOT.glob("gateway/manual/*.md"), *ROOT.glob("*.md")]
    for source in sources:
        for name in re.findall(
            r"prefixcache/design/[\w-]+\.md", source.read_text(encoding="utf-8")
        ):
            assert (ROOT / name).exists(), f"{source} names {name}"
