"""Pure decisions on token ids: which requests run, which prefixes are cached, and what goes into the next step."""

from paddock.scheduling.budget import StepBudget
from paddock.scheduling.cache import CacheCorrupted
from paddock.scheduling.cache_view import CacheSpan, CacheView, merge_spans
from paddock.scheduling.context_shift import ContextShift
from paddock.scheduling.disk_tier import DiskCounts, DiskTier, Read, Write
from paddock.scheduling.fairness import FairQueue, may_enqueue
from paddock.scheduling.packing import Job, Packer
from paddock.scheduling.plan import Plan
from paddock.scheduling.prices import Price, Prices
from paddock.scheduling.radix_tree import common_prefix
from paddock.scheduling.request import Progress, Request
from paddock.scheduling.scheduler import Scheduler
from paddock.scheduling.slots import Slot
