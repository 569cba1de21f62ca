"""What the engine thread spent its time on, so that each request can tell its own share from that of others.

Only sums are kept, and a request takes their differences. So a step that generates costs nothing for it.
"""

from __future__ import annotations

from collections.abc import Hashable
from weakref import WeakValueDictionary


class GroupTimes:
    """The steps of requests that can share them: see `scheduling/step_groups.py`."""

    __slots__ = ("__weakref__", "_all", "generating")

    def __init__(self, all_times: StepTimes) -> None:
        self._all = all_times
        self.generating = 0.0
        """Seconds of its steps, without the part that computed prompts."""

    @property
    def elsewhere(self) -> float:
        """Seconds so far that no answer of this group got anything from: prompts, also its own, and everything else."""
        return self._all.seconds - self.generating


class StepTimes:
    """Belongs to the engine thread."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Of all steps and of all other work."""
        self._groups: WeakValueDictionary[Hashable, GroupTimes] = WeakValueDictionary()

    def group(self, key: Hashable) -> GroupTimes:
        """It lives as long as the caller keeps it."""
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = GroupTimes(self)
        return found

    def other_work(self, seconds: float) -> None:
        """Work that is no step: copies, embeddings, images, other models on the same cores."""
        self.seconds += seconds

    def step(self, key: Hashable, seconds: float, *, prompt_share: float) -> None:
        """A step of a group. `prompt_share` is the part of its tokens that are prompts."""
        self.seconds += seconds
        if (group := self._groups.get(key)) is not None:
            group.generating += seconds * (1 - prompt_share)
