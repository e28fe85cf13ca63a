"""How every state machine of the index is run."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_machine(machine: type[RuleBasedStateMachine], max_examples: int) -> None:
    """Run a machine; the environment's PREFIXCACHE_EXAMPLES, if set, says how many examples."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(os.environ.get("PREFIXCACHE_EXAMPLES", max_examples)),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
