"""Logits → token, for one request.

This is our own code rather than llama.cpp's sampler chain: a draw depends on the seed and the position alone, and
`batch_sampler.py` samples all rows of a step with common samplers at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from copy import copy
from functools import cached_property
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from paddock.engine.adaptive import AdaptiveTarget
from paddock.engine.candidates import LARGEST, Candidates, Floats, Ids, Logits, repair, top_k
from paddock.engine.draws import uniform
from paddock.engine.filters import MIN_TEMPERATURE, likely_head, temperature
from paddock.engine.grammar import Grammar
from paddock.engine.history import History
from paddock.engine.mirostat import keep_likely
from paddock.engine.ordered_draw import draw_ordered
from paddock.engine.penalties import Changes, Penalized, Penalty, RepeatPenalty
from paddock.engine.sampler_table import LAST, MERGED, SAMPLERS, FilterFunction, active_samplers, batched_order
from paddock.engine.sampling_errors import no_token_left
from paddock.engine.selected_rows import KEPT
from paddock.types import Sampled, SamplingParams, TokenLogprobs

# Part of `system_fingerprint`: increase it whenever the same logits and seed may give another token.
PROFILE = 4
_XTC_DRAW = 0x5851F42D4C957F2D
_MAX_BATCHED_K = 256
_MAX_SELECTED_K = KEPT - 4
_LEAST_LOGPROB = -9999.0
"""Reported instead of -inf, which JSON cannot express. OpenAI's API uses the same number."""


Replaced = list[tuple[Ids, Logits]]
"""Ids with the logits that they had, in the order of the changes."""


class Sampler:
    """The sampler of one request, with its state. Requests never share one."""

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int] = (),
        *,
        end_tokens: frozenset[int] = frozenset(),
        breakers: Callable[[tuple[str, ...]], Collection[int] | npt.NDArray[np.int32]] = lambda _: (),
        tokenize: Callable[[str], Collection[int]] = lambda _: (),
        grammar: Grammar | None = None,
    ) -> None:
        """`breakers` finds the tokens of DRY's breakers, `tokenize` those of a text in `logit_bias`."""
        self.params = params
        self.grammar = grammar
        active = active_samplers(params)
        self.uses_history = any(SAMPLERS[name].penalty is not None for name in active)
        """Whether any penalty is on."""
        first = list(takewhile(lambda name: SAMPLERS[name].penalty is not None, active))
        self.first_penalties = [penalty(params) for name in first if (penalty := SAMPLERS[name].penalty) is not None]
        """The penalties that come before all filters."""
        self._filters = active[len(first) :]
        """The active samplers after them, which may be penalties too."""
        self._adaptive = AdaptiveTarget.of(params)
        self._is_plain = not params.mirostat and params.n_probs < 0 and self._adaptive is None
        self._unconstrained: Logits | None = None
        self.seed = params.seed or 0
        self.drawn = 0
        self._surprise = 2 * params.mirostat_tau
        self._forced: list[int] = []
        self.step_limit: int | None = None
        """The most tokens that may be sampled in one step, however many are drafted: afterwards the caller may force
        others. None: any number.
        """
        breaking = breakers(params.dry_sequence_breakers) if "dry" in active else ()
        self.history = History(prompt if self.uses_history else (), breaking)
        self.history.prepare(
            counted=params.repeat_last_n if "penalties" in active else None,
            matched=params.dry_penalty_last_n if "dry" in active else None,
        )
        bias = dict.fromkeys(end_tokens, -math.inf) if params.ignore_eos else {}
        for biased, amount in params.logit_bias:
            for token in (biased,) if isinstance(biased, int) else tokenize(biased):
                bias[token] = bias.get(token, 0.0) + amount
        self.bias_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self.bias = np.fromiter(bias.values(), np.float32, len(bias))

    def sibling(self, params: SamplingParams) -> Sampler:
        """A sampler for another answer to the same prompt, before a token was chosen. Only the seed may differ."""
        other = copy(self)
        other.params = params
        other.grammar = None if self.grammar is None else self.grammar.fork()
        history, adaptive = self.history.copy(), AdaptiveTarget.of(params)
        vars(other).update(
            seed=params.seed or 0, _forced=[], step_limit=None, history=history, _adaptive=adaptive
        )  # fmt: skip
        return other

    @cached_property
    def is_greedy(self) -> bool:
        """Only the largest logit matters."""
        return self._is_plain and self._largest_wins

    @cached_property
    def is_batchable(self) -> bool:
        """After the first penalties only the batched filters are active, in their order, and top-k is."""
        return self._is_common and 0 < self.params.top_k <= _MAX_BATCHED_K

    @cached_property
    def is_unlimited(self) -> bool:
        """The same with top-p or min-p, and without top-k."""
        p = self.params
        return self._is_common and p.top_k <= 0 and (0 < p.min_p <= 1 or (p.top_p < 1 and p.min_p <= 0))

    @cached_property
    def is_selectable(self) -> bool:
        """The most likely tokens decide: nothing is done to the others but to make them less likely."""
        p = self.params
        is_limited = self.is_greedy or (self.is_batchable and p.top_k <= _MAX_SELECTED_K)
        is_near = self.is_unlimited and p.min_p > 0 and p.top_p >= 1
        lowers = all(penalty.only_lowers for penalty in self.first_penalties) and bool((self.bias <= 0).all())
        return self.grammar is None and (is_limited or is_near) and lowers

    def counts_many(self, least: int) -> bool:
        """Whether penalties may count so many tokens."""
        window = self.params.repeat_last_n
        return (window < 0 or window >= least) and any(isinstance(one, RepeatPenalty) for one in self.first_penalties)

    @cached_property
    def _is_common(self) -> bool:
        p = self.params
        order = tuple(name for name in p.samplers if SAMPLERS[name].is_batched)
        return (
            self._is_plain and all(SAMPLERS[name].is_batched for name in self._filters) and order == batched_order()
            and not p.dynatemp_range and p.min_keep <= 1 and p.temperature >= MIN_TEMPERATURE
        )  # fmt: skip

    @cached_property
    def _largest_wins(self) -> bool:
        """The temperature keeps only the most likely token, and no filter removes that token first."""
        p = self.params
        return (
            p.temperature <= 0 and p.dynatemp_range <= 0 and "temperature" in p.samplers
            and all(SAMPLERS[name].keeps_best and SAMPLERS[name].penalty is None for name in self._filters)
        )  # fmt: skip

    @cached_property
    def _plan(self) -> list[tuple[FilterFunction | None, Penalty | None]]:
        """What is done after the first penalties."""
        names = list(self._filters)
        plan: list[tuple[FilterFunction | None, Penalty | None]] = []
        while names:
            if self._is_plain and (last := LAST.get(tuple(names))) is not None:
                return [*plan, (last, None)]
            merged = MERGED.get((names[0], names[1])) if len(names) > 1 else None
            entry = SAMPLERS[names[0]]
            plan.append((merged or entry.filter, entry.penalty and entry.penalty(self.params)))
            del names[: 1 if merged is None else 2]
        return plan

    def constrain(self, row: Logits, grammar: Grammar) -> None:
        """Remove from the row, in place, what the grammar forbids. The original row is kept for log-probabilities."""
        if self.params.n_probs >= 0:
            self._unconstrained = row.copy()
        grammar.restrict(row)

    def force(self, tokens: Sequence[int]) -> None:
        """Choose these tokens next, whatever the logits are."""
        self._forced += tokens

    def apply_forced(self, row: Logits, chosen: Sampled) -> Sampled:
        """The next forced token, or `chosen` if there is none."""
        if not self._forced or chosen.error is not None:
            return chosen
        token = self._forced.pop(0)
        if self.uses_history:
            self.history.replace_last(token)
        if self._adaptive is not None:
            self._adaptive.reject()
        logprobs = None if self.params.n_probs < 0 else logprobs_of(row, token, self.params.n_probs)
        return Sampled(token, logprobs)

    def draw(self, weights: Floats) -> int:
        """A random index, with a probability in proportion to its weight."""
        return _index_at(weights, self.next_uniform())

    def next_uniform(self) -> float:
        self.drawn += 1
        return uniform(self.seed, self.drawn - 1)

    def choose(self, row: Logits) -> Sampled:
        """The general case: every sampler, one row."""
        p = self.params
        replaced = self.adjust(row)
        try:
            adjusted = repair(row)
            if adjusted is None:
                return self.no_token()
            candidates = Candidates.all(adjusted) if p.mirostat else self._filtered(adjusted)
        finally:
            self.restore(row, replaced)
        if p.mirostat:
            temperature(candidates, p, self._xtc_draw)
            at, weights = self._mirostat(candidates)
        else:
            if not len(candidates.ids) or not candidates.logits.max() > -np.inf:
                return self.no_token()
            probabilities = candidates.probabilities()
            weights = probabilities if self._adaptive is None else self._adaptive.weigh(probabilities)
            # Draw even for a single candidate, so that the next draw's number does not depend on this one.
            at = self._draw_in_order(candidates, weights) if candidates.drawn_in_order else self.draw(weights)
            if self._adaptive is not None:
                self._adaptive.choose(float(probabilities[at]))
        token = int(candidates.ids[at])
        self.remember(token)
        return Sampled(token, self._logprobs(row, token, at, candidates, weights))

    def no_token(self) -> Sampled:
        """The result for a row in which every token is forbidden."""
        return Sampled(None, error=no_token_left(self.params, "" if self.grammar is None else self.grammar.param))

    def adjust(self, row: Logits) -> Replaced:
        """Apply the bias and the first penalties to the row, in place. They change few logits, so this is faster than
        a copy. Returns what `restore` needs.
        """
        replaced: Replaced = []
        if len(self.bias):
            replaced.append((self.bias_ids, row[self.bias_ids]))
            row[self.bias_ids] += self.bias
        for penalty in self.first_penalties:
            changes = self._changes(row, penalty)
            replaced.append((changes.places, changes.before))
            row[changes.places] = changes.after
        return replaced

    @staticmethod
    def restore(row: Logits, replaced: Replaced) -> None:
        for ids, logits in reversed(replaced):
            row[ids] = logits

    def remember(self, token: int) -> None:
        """Penalties count this token from now on."""
        if self.uses_history:
            self.history.append(token)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _filtered(self, row: Logits) -> Candidates:
        p = self.params
        if self._largest_wins:
            return Candidates.best(row, 1)
        plan, first = self._plan, tuple(self._filters[:2])
        candidates = None
        if first[:1] == ("top_k",):
            candidates = Candidates.best(row, p.top_k)
        elif first == ("top_p", "min_p") or first[:1] == ("min_p",):
            candidates = likely_head(row, p, with_top_p=first[0] == "top_p")
        if candidates is not None:
            plan = plan[1:]
        else:
            candidates = Candidates.all(row)
        for apply, penalty in plan:
            if apply is not None:
                apply(candidates, p, self._xtc_draw)
            elif penalty is not None:
                self._penalize(candidates, penalty, len(row))
        return candidates

    def _changes(self, row: Logits, penalty: Penalty) -> Changes:
        self.history.check(len(row))
        return penalty.changes(row, [Penalized(0, self.history)])

    def _penalize(self, candidates: Candidates, penalty: Penalty, n_vocab: int) -> None:
        """A penalty after filters."""
        spread = np.full(n_vocab, -np.inf, np.float32)
        spread[candidates.ids] = candidates.logits
        changes = self._changes(spread, penalty)
        spread[changes.places] = changes.after
        spread = np.minimum(spread, LARGEST)  # an earlier temperature may have overflowed
        candidates.logits = spread[candidates.ids].astype(np.float64)
        candidates.ordered = False

    def _xtc_draw(self) -> float:
        return uniform(self.seed ^ _XTC_DRAW, self.drawn)

    def _draw_in_order(self, candidates: Candidates, weights: Floats) -> int:
        """`draw` as if they were ordered."""
        uniform = self.next_uniform()
        at = None if candidates.ordered else draw_ordered(candidates, weights, uniform)
        if at is None:
            candidates.order()
            at = _index_at(candidates.probabilities(), uniform)
        return at

    def _mirostat(self, candidates: Candidates) -> tuple[int, Floats]:
        """Keep the surprise of the text near `tau` by adapting how many candidates are kept."""
        p = self.params
        assert p.mirostat, "the caller checked"
        keep_likely(candidates, p.mirostat, self._surprise)
        weights = candidates.probabilities()
        at = self.draw(weights)
        self._surprise -= p.mirostat_eta * (-math.log2(max(float(weights[at]), 1e-30)) - p.mirostat_tau)
        return at, weights

    def _logprobs(
        self, row: Logits, token: int, at: int, candidates: Candidates, weights: Floats
    ) -> TokenLogprobs | None:
        p = self.params
        if p.n_probs < 0:
            return None
        if p.post_sampling_probs:
            logs = np.log(np.fmax(weights, 1e-45))
            best = np.argsort(-weights, kind="stable")[: p.n_probs]
            return TokenLogprobs(float(logs[at]), [(int(candidates.ids[i]), float(logs[i])) for i in best])
        return logprobs_of(row if self._unconstrained is None else self._unconstrained, token, p.n_probs)


def _index_at(weights: Floats, uniform: float) -> int:
    total = weights.cumsum()
    return min(int(np.searchsorted(total, uniform * total[-1], side="right")), len(weights) - 1)


def logprobs_of(row: Logits, token: int, count: int) -> TokenLogprobs:
    """The log-probability of a token before any sampler, and those of the `count` most likely."""
    peak = float(row.max())
    if not math.isfinite(peak):
        repaired = repair(row)
        row = np.zeros_like(row) if repaired is None else repaired
        peak = float(row.max())
    total = peak + math.log(float(np.exp(row.astype(np.float64) - peak).sum()))
    best = top_k(row, count) if count else ()

    def logprob(id: int) -> float:
        return max(float(row[id]) - total, _LEAST_LOGPROB)

    return TokenLogprobs(logprob(token), [(int(id), logprob(id)) for id in best])
