"""What computing and copying cost on this machine, from the measured times of what was done. Pure.

A copy is cut into parts by these prices, and a prefix is restored only where that is faster than computing it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_KEEP = 0.9
"""The weight of what was known before, at each observation."""
_LEAST_OBSERVED = 3
# One observation counts as at most so many times the expected time: the thread may have been interrupted.
_OUTLIER = 4.0
# Amounts that differ less than this say nothing about the fixed part.
_LEAST_SPREAD = 0.01
# A copy to host memory can wait, so it takes at most this part of a step, and a request waits for one from there.
_SAVE_STEPS, _RESTORE_STEPS = 0.5, 1.0
_SAVE_SECONDS, _RESTORE_SECONDS = 0.004, 0.015
_LEAST_TOKENS = 64
# While nothing runs, nobody waits for a copy but a request that arrives meanwhile.
_IDLE_SAVE_SECONDS = 0.02
# Beside steps a part is larger if there was none for a while, but not larger than this.
_LONGEST_SAVE = 0.05
# A part takes at least so many times the fixed part of its price, because smaller parts would copy little in all.
_LEAST_PART = 2.0
# Nobody notices pauses of this length in all, nor further ones that take this part of the time.
_SHORT_PAUSE = 0.05
_UNNOTICED = 0.05
# How likely it is that a prefix is used again, about: nobody knows.
_USED_AGAIN = 0.5
# A copy that does not pay is tried again after so many times: the price of what is not done would never change.
_TRY_AGAIN = 16
# A restore that loses less than this is made: the loss is hardly noticed, and measured times are not more exact.
_LEAST_LOSS = 0.02
# A copy while nothing runs begins after so many times its own duration: who was silent for long is likely to be so for
# a moment more.
_SILENCE = 4.0
# It begins after this long at the latest: the estimate may be wrong, and what is not copied is lost in a crash.
_LONGEST_SILENCE = 15.0
# A wait of this length need not be avoided.
_SHORT_WAIT = 0.02


@dataclass(slots=True)
class Price:
    """The seconds of one kind of work: a fixed part, and a part for each unit. Old observations fade."""

    observed: int = 0
    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def observe(self, amount: int, seconds: float) -> None:
        """So many units took so long."""
        if amount <= 0 or seconds <= 0:
            return
        if self.is_known:
            seconds = min(seconds, _OUTLIER * self.seconds(amount))
        self.observed += 1
        self._weight = _KEEP * self._weight + 1
        self._x = _KEEP * self._x + amount
        self._y = _KEEP * self._y + seconds
        self._xx = _KEEP * self._xx + amount * amount
        self._xy = _KEEP * self._xy + amount * seconds

    @property
    def is_known(self) -> bool:
        return self.observed >= _LEAST_OBSERVED

    @property
    def per_unit(self) -> float:
        """Seconds of one more unit; 0 before the first observation."""
        if not self.observed:
            return 0.0
        average = self._y / self._x
        spread = self._weight * self._xx - self._x * self._x
        if spread <= _LEAST_SPREAD * self._x * self._x:
            return average
        slope = (self._weight * self._xy - self._x * self._y) / spread
        return min(max(slope, average / 4), average)

    @property
    def fixed(self) -> float:
        """Seconds that do not depend on the amount."""
        return max(self._y - self.per_unit * self._x, 0.0) / self._weight if self.observed else 0.0

    @property
    def per_second(self) -> float:
        """Units per second of a large amount; 0 before the first observation."""
        return 1 / self.per_unit if self.observed else 0.0

    def seconds(self, amount: int) -> float:
        return self.fixed + self.per_unit * amount

    def amount(self, seconds: float) -> int:
        """How much takes so long; 0 before the first observation."""
        return max(int((seconds - self.fixed) / self.per_unit), 0) if self.observed else 0


@dataclass(slots=True)
class Prices:
    """The units of `prefill` are prompt tokens, those of all others bytes."""

    prefill: Price = field(default_factory=Price)
    save: Price = field(default_factory=Price)
    """From cells to host memory."""
    restore: Price = field(default_factory=Price)
    """From host memory to cells."""
    disk_write: Price = field(default_factory=Price)
    """From host memory to disk."""
    disk_read: Price = field(default_factory=Price)
    """From disk to host memory."""
    generating: float = 0.0
    """Seconds of a step that only generates; 0: not known yet."""
    save_credit: float = 0.0
    """Seconds that a copy to host memory may take beside the next step: a part of the time since the last one. 0 while
    nothing runs.
    """
    _pause: float = _SHORT_PAUSE
    """Seconds of copies that nobody would notice now."""
    _refused: int = 0

    def pass_time(self, seconds: float) -> None:
        """Requests have run for so long; infinite: nothing runs."""
        self._pause = min(self._pause + _UNNOTICED * seconds, _SHORT_PAUSE)

    def goes_unnoticed(self, size: int) -> bool:
        """Whether nobody notices a copy of so many bytes to host memory. If so, it is counted as made."""
        seconds = self.save.seconds(size)
        if seconds > self._pause:
            return False
        self._pause -= seconds
        return True

    def save_tokens(self, bytes_per_token: int, default: int, *, is_idle: bool = False) -> int:
        """How many tokens may be copied to host memory between two steps, or at once while nothing runs; `default`
        before it is measured.
        """
        usual = _IDLE_SAVE_SECONDS if is_idle else max(_SAVE_SECONDS, _SAVE_STEPS * self.generating)
        return self._part(self.save, max(usual, min(self.save_credit, _LONGEST_SAVE)), bytes_per_token, default)

    def restore_tokens(self, bytes_per_token: int, default: int) -> int:
        """How many tokens may be copied from host memory between two steps; `default` before it is measured."""
        return self._part(
            self.restore, max(_RESTORE_SECONDS, _RESTORE_STEPS * self.generating), bytes_per_token, default
        )

    def silence_before_save(self, size: int) -> float:
        """For how many seconds nothing must have run before so many bytes are copied to host memory at once, because a
        request that arrives meanwhile waits for the end of the copy. 0 before it is measured: one short copy says
        nothing about the price of a token.
        """
        if not self.save.is_known:
            return 0.0
        return min(_SILENCE * max(self.save.seconds(size) - _SHORT_WAIT, 0.0), _LONGEST_SILENCE)

    def is_worth_saving(self, tokens: int, size: int, *, waiting: int) -> bool:
        """Whether to copy a prefix to host memory before its cells are used for something else: `tokens` that host
        memory lacks, with a copy of `size` bytes, while so many requests wait for it. It is worth it if they lose less
        than another request would gain later. True before it is measured.
        """
        if not self.save.is_known:
            return True
        seconds = self.save.seconds(size)
        restoring = self.restore.seconds(size) if self.restore.observed else seconds
        return seconds * waiting <= _USED_AGAIN * (self.prefill.per_unit * tokens - restoring)

    def again(self, tokens: int, size: int) -> float:
        """The seconds, about, that it costs later if so many tokens must be computed again, and so many bytes copied to
        cells. 0 while the price of a token is unknown.
        """
        if not self.prefill.is_known:
            return 0.0
        restoring = self.restore.seconds(size) if size else 0.0
        return _USED_AGAIN * (self.prefill.per_unit * tokens + restoring)

    def is_worth_restoring(self, tokens: int, size: int, *, on_disk: int = 0) -> bool:
        """Whether it is faster to copy so many tokens of this size to cells than to compute them. `on_disk` bytes of
        them must be read first. True while prices are unknown, and sometimes to measure them again.
        """
        pays = tokens <= 0 or self.restore_saves(tokens, size, on_disk=on_disk) > -_LEAST_LOSS
        return pays or self._tries_again()

    def is_worth_keeping(self, tokens: int, size: int) -> bool:
        """Whether a later request would gain from a copy of so many tokens of this size in host memory. True while
        prices are unknown, and sometimes to measure them again.
        """
        return self.restore_saves(tokens, size) > 0 or self._tries_again()

    def restore_saves(self, tokens: int, size: int, *, on_disk: int = 0) -> float:
        """How many seconds a copy saves; 1 while prices are unknown."""
        if not self.prefill.is_known or not self.restore.is_known or (on_disk and not self.disk_read.is_known):
            return 1.0
        # A step is computed anyway, for the last token, so only the additional tokens count.
        computing = self.prefill.per_unit * tokens
        return computing - self.restore.seconds(size) - (self.disk_read.seconds(on_disk) if on_disk else 0.0)

    def _tries_again(self) -> bool:
        self._refused += 1
        return self._refused % _TRY_AGAIN == 0

    @staticmethod
    def _part(price: Price, seconds: float, bytes_per_token: int, default: int) -> int:
        if not price.is_known or not bytes_per_token:
            return default
        return max(price.amount(max(seconds, _LEAST_PART * price.fixed)) // bytes_per_token, _LEAST_TOKENS)
