"""Which cached leaf is given up next: one protocol, and the policies that keep it."""

from prefixcache.index.policies.cost_aware import CostAwarePolicy
from prefixcache.index.policies.keyed import FifoPolicy, LfuPolicy, PriorityPolicy
from prefixcache.index.policies.learned import LearnedPolicy
from prefixcache.index.policies.lru import LruPolicy, TtlPolicy
from prefixcache.index.policies.names import POLICY_NAMES, PolicyOptions, make_policy
from prefixcache.index.policies.protocol import EvictionPolicy
from prefixcache.index.policies.slru import SlruPolicy

__all__ = [
    "POLICY_NAMES",
    "CostAwarePolicy",
    "EvictionPolicy",
    "FifoPolicy",
    "LearnedPolicy",
    "LfuPolicy",
    "LruPolicy",
    "PolicyOptions",
    "PriorityPolicy",
    "SlruPolicy",
    "TtlPolicy",
    "make_policy",
]
