"""What to conclude from what ran. Pure: no torch, no pytest, no GPU, no disk, no clock."""

from .baseline import SCHEMA_VERSION, Baseline, decode_baseline, encode_baseline, from_run
from .expectation import Expectation, applicable, mismatches
from .fingerprint import Comparison, compare
from .stats import RelativeChange, relative_change
from .structure import judge_structure
from .timing import DEFAULT_POLICIES, Policy, judge_time
from .update import Action, PlannedChange, plan_update
from .verdict import Reason, Status, Verdict, worst

__all__ = [
    "DEFAULT_POLICIES",
    "SCHEMA_VERSION",
    "Action",
    "Baseline",
    "Comparison",
    "Expectation",
    "PlannedChange",
    "Policy",
    "Reason",
    "RelativeChange",
    "Status",
    "Verdict",
    "applicable",
    "compare",
    "decode_baseline",
    "encode_baseline",
    "from_run",
    "judge_structure",
    "judge_time",
    "mismatches",
    "plan_update",
    "relative_change",
    "worst",
]
