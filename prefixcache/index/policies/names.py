"""Policies by the names that settings and commands use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from prefixcache.config import DEFAULT_IDLE_TTL_SECONDS
from prefixcache.errors import ConfigError
from prefixcache.index.policies.cost_aware import CostAwarePolicy
from prefixcache.index.policies.keyed import FifoPolicy, LfuPolicy, PriorityPolicy
from prefixcache.index.policies.learned import LearnedPolicy
from prefixcache.index.policies.lru import LruPolicy, TtlPolicy
from prefixcache.index.policies.protocol import EvictionPolicy
from prefixcache.index.policies.segments import DEFAULT_SHARE
from prefixcache.index.policies.slru import SlruPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """What some policies can be told; the others take no notice."""

    idle_ttl_seconds: float = DEFAULT_IDLE_TTL_SECONDS  # ttl: unused for so long, an entry goes
    protected_share: float = DEFAULT_SHARE  # slru, cost-aware: of all listed blocks


_MAKERS: Mapping[str, Callable[[PolicyOptions], EvictionPolicy]] = MappingProxyType(
    {
        "lru": lambda _: LruPolicy(),
        "cost-aware": lambda options: CostAwarePolicy(protected_share=options.protected_share),
        "learned": lambda _: LearnedPolicy(),
        "lfu": lambda _: LfuPolicy(),
        "fifo": lambda _: FifoPolicy(),
        "slru": lambda options: SlruPolicy(protected_share=options.protected_share),
        "priority": lambda _: PriorityPolicy(),
        "ttl": lambda options: TtlPolicy(idle_ttl_seconds=options.idle_ttl_seconds),
    }
)
POLICY_NAMES = tuple(_MAKERS)  # the default first


def make_policy(name: str, options: PolicyOptions | None = None) -> EvictionPolicy:
    """Return a new policy of that name, with nothing listed.

    Raises:
        ConfigError: there is no such policy, or an option that it reads is out of range.
    """
    maker = _MAKERS.get(name)
    if maker is None:
        raise ConfigError("policy", name, f"must be one of {', '.join(POLICY_NAMES)}")
    return maker(options or PolicyOptions())
