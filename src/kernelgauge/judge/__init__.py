"""What to conclude from what ran. Pure: no torch, no pytest, no GPU, no disk, no clock."""

from ..run import Observation, observe
from .baseline import (
    SCHEMA_VERSION,
    Baseline,
    Entry,
    Process,
    Recorded,
    calibrated,
    check_integers,
    decode_baseline,
    encode_baseline,
    from_run,
    gemm_kernel,
    references_us,
)
from .expectation import Expectation, applicable, mismatches
from .fingerprint import Comparison, FieldChange, compare
from .priors import FALSE_ALARMS_PER_RUN, Limits, Prior, prior_for
from .review import Candidate, Group, Review, Reviewed, review
from .structure import judge_structure
from .time_verdict import judge_time, not_measured
from .timing import Decision, ProcessTime, decide, on_same_host, variance_between_processes
from .update import Action, PlannedChange, TimeChange, comparison_count, joined, plan_update
from .verdict import (
    DECLARED,
    MEASUREMENT,
    NUMERICS,
    STRUCTURE,
    WORST_FIRST,
    Reason,
    RelativeChange,
    Status,
    Verdict,
    worst,
)

__all__ = [
    "DECLARED",
    "FALSE_ALARMS_PER_RUN",
    "MEASUREMENT",
    "NUMERICS",
    "SCHEMA_VERSION",
    "STRUCTURE",
    "WORST_FIRST",
    "Action",
    "Baseline",
    "Candidate",
    "Comparison",
    "Decision",
    "Entry",
    "Expectation",
    "FieldChange",
    "Group",
    "Limits",
    "Observation",
    "PlannedChange",
    "Prior",
    "Process",
    "ProcessTime",
    "Reason",
    "Recorded",
    "RelativeChange",
    "Review",
    "Reviewed",
    "Status",
    "TimeChange",
    "Verdict",
    "applicable",
    "calibrated",
    "check_integers",
    "compare",
    "comparison_count",
    "decide",
    "decode_baseline",
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
