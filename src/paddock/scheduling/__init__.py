"""Pure decisions on token ids: which requests run, where their prefixes lie, and what goes into the next step."""

from paddock.scheduling.budget import StepBudget
from paddock.scheduling.fairness import FairQueue, has_place
from paddock.scheduling.known import Known, KnownSpan, joined
from paddock.scheduling.packing import Job, Packer
from paddock.scheduling.request import Progress, Request
from paddock.scheduling.scheduler import Plan, Scheduler
from paddock.scheduling.slots import Slot

__all__ = [
    "FairQueue",
    "Job",
    "Known",
    "KnownSpan",
    "Packer",
    "Plan",
    "Progress",
    "Request",
    "Scheduler",
    "Slot",
    "StepBudget",
    "has_place",
    "joined",
]
