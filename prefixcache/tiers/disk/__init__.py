"""The tier on a disk: a folder of segments that one process writes."""

from prefixcache.tiers.disk.pruning import prune
from prefixcache.tiers.disk.survey import ModelShare, Survey, Trouble, survey
from prefixcache.tiers.disk.tier import DiskTier

__all__ = ["DiskTier", "ModelShare", "Survey", "Trouble", "prune", "survey"]
