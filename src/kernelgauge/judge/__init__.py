"""What to conclude from what ran. Pure: no torch, no pytest, no GPU, no disk, no clock."""

from .baseline import SCHEMA_VERSION, Baseline, Entry, Process, decode_baseline, encode_baseline, from_run
from .calibration import calibrated
from .decision import Decision, decide, smallest_detectable
from .expectation import Expectation, applicable, mismatches
from .fingerprint import Comparison, compare
from .machine import MachineChange, machine_change
from .noise import Seen, process_noise
from .observation import Observation, observe
from .policy import DEFAULT_POLICIES, FALSE_ALARMS_PER_SUITE, Policy, Prior
from .stats import RelativeChange
from .structure import judge_structure
from .timing import judge_time, not_measured
from .update import Action, PlannedChange, plan_update
from .verdict import Reason, Status, Verdict, worst

__all__ = [
    "DEFAULT_POLICIES",
    "FALSE_ALARMS_PER_SUITE",
    "SCHEMA_VERSION",
    "Action",
    "Baseline",
    "Comparison",
    "Decision",
    "Entry",
    "Expectation",
    "MachineChange",
    "Observation",
    "PlannedChange",
    "Policy",
    "Prior",
    "Process",
    "Reason",
    "RelativeChange",
    "Seen",
    "Status",
    "Verdict",
    "applicable",
    "calibrated",
    "compare",
    "decide",
    "decode_baseline",
    "encode_baseline",
    "from_run",
    "judge_structure",
    "judge_time",
    "machine_change",
    "mismatches",
    "not_measured",
    "observe",
    "plan_update",
    "process_noise",
    "smallest_detectable",
    "worst",
]
