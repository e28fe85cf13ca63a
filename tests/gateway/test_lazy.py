"""Commands that are listed without being loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("group", [(), ("bench",)])
def test_a_list_of_commands_loads_none_of_them(group: tuple[str, ...]) -> None:
    """Neither torch nor transformers is loaded to say what there is."""
    code = (
        "import sys; from gateway.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as ended: code = ended.code\n"
        "assert not code, code\n"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *group, "--help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Example: " in done.stdout
    listed = [line.split()[0] for line in done.stdout.split("Commands:\n")[1].splitlines() if line]
    assert {"serve"} <= set(listed)
