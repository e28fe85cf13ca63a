"""What could go wrong in the index, one slip at a time, each in a place of its own."""

from tests.index.faults.blocks import BLOCKS
from tests.index.faults.lifetimes import LIFETIMES
from tests.index.faults.matching import MATCHING
from tests.index.faults.moving import MOVING
from tests.index.faults.tenants import TENANTS
from tests.index.planting import Fault

FAULTS: tuple[Fault, ...] = (*MATCHING, *BLOCKS, *LIFETIMES, *TENANTS, *MOVING)

__all__ = ["FAULTS"]
