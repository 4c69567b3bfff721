"""Results of workers, shards and machines, brought together; and what the machines say as one."""

from .merging import merge
from .verdict import Cause, Conclusion, Fleet, FleetWorkload, Machine, fleet

__all__ = ["Cause", "Conclusion", "Fleet", "FleetWorkload", "Machine", "fleet", "merge"]
