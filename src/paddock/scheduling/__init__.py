"""Pure decisions on token ids: which requests run, and what goes into the next step."""

from paddock.scheduling.scheduler import Plan, Progress, Request, Scheduler

__all__ = ["Plan", "Progress", "Request", "Scheduler"]
