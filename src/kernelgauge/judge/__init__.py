"""What to conclude from what ran. Pure: no torch, no pytest, no GPU, no disk, no clock."""

from .ancestry import Ancestor, Recorded, RecordedConditions, ancestor_of, conditions_of, descended
from .baseline import SCHEMA_VERSION, Baseline, Entry, Process, decode_baseline, encode_baseline, from_run
from .calibration import calibrated
from .decision import Decision, decide, smallest_detectable
from .expectation import Expectation, applicable, mismatches
from .fingerprint import Comparison, FieldChange, compare
from .joining import joined
from .machine import MachineChange, gemm_kernel, machine_change, machine_change_on
from .noise import process_noise
from .observation import Observation, observe
from .policy import DEFAULT_POLICIES, FALSE_ALARMS_PER_SUITE, Policy, Prior, policies_for, policy_for
from .review import review
from .reviewed import Candidate, Group, Review, Reviewed, SinceFirst
from .seen import Seen, held_against, telling
from .stats import RelativeChange
from .structure import judge_structure
from .timing import judge_time, not_measured
from .update import Action, PlannedChange, TimeChange, plan_update
from .verdict import DECLARED, Reason, Status, Verdict, worst

__all__ = [
    "DECLARED",
    "DEFAULT_POLICIES",
    "FALSE_ALARMS_PER_SUITE",
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
    "MachineChange",
    "Observation",
    "PlannedChange",
    "Policy",
    "Prior",
    "Process",
    "Reason",
    "Recorded",
    "RecordedConditions",
    "RelativeChange",
    "Review",
    "Reviewed",
    "Seen",
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
    "held_against",
    "joined",
    "judge_structure",
    "judge_time",
    "machine_change",
    "machine_change_on",
    "mismatches",
    "not_measured",
    "observe",
    "plan_update",
    "policies_for",
    "policy_for",
    "process_noise",
    "review",
    "smallest_detectable",
    "telling",
    "worst",
]
