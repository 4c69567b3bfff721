"""What to conclude from what ran. Pure: no torch, no pytest, no GPU, no disk, no clock."""

from .ancestry import Ancestor, Recorded, RecordedConditions, ancestor_of, conditions_of, descended
from .baseline import (
    SCHEMA_VERSION,
    Baseline,
    Entry,
    Process,
    decode_baseline,
    encode_baseline,
    from_run,
    gemm_kernel,
    references_us,
)
from .calibration import calibrated
from .expectation import Expectation, applicable, mismatches
from .fingerprint import Comparison, FieldChange, compare
from .joining import joined
from .observation import Observation, observe
from .priors import FALSE_ALARMS_PER_RUN, Prior, prior_for
from .review import review
from .reviewed import Candidate, Group, Review, Reviewed, SinceFirst
from .structure import judge_structure
from .time_verdict import judge_time, not_measured
from .timing import Decision, ProcessTime, decide, on_same_host, variance_between_processes
from .update import Action, PlannedChange, TimeChange, plan_update
from .verdict import DECLARED, Reason, RelativeChange, Status, Verdict, worst

__all__ = [
    "DECLARED",
    "FALSE_ALARMS_PER_RUN",
    "SCHEMA_VERSION",
    "Action",
    "Ancestor",
    "Baseline",
    "Candidate",
    "Comparison",
    "Decision",
    "Entry",
    "Expectation",
    "FieldChange",
    "Group",
    "Observation",
    "PlannedChange",
    "Prior",
    "Process",
    "ProcessTime",
    "Reason",
    "Recorded",
    "RecordedConditions",
    "RelativeChange",
    "Review",
    "Reviewed",
    "SinceFirst",
    "Status",
    "TimeChange",
    "Verdict",
    "ancestor_of",
    "applicable",
    "calibrated",
    "compare",
    "conditions_of",
    "decide",
    "decode_baseline",
    "descended",
    "encode_baseline",
    "from_run",
    "gemm_kernel",
    "joined",
    "judge_structure",
    "judge_time",
    "mismatches",
    "not_measured",
    "observe",
    "on_same_host",
    "plan_update",
    "prior_for",
    "references_us",
    "review",
    "variance_between_processes",
    "worst",
]
