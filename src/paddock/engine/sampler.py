"""Logits → token. Own code rather than llama.cpp's chains: a draw depends on the seed and its place alone, and the
rows of a step that ask for the usual samplers are done together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from itertools import dropwhile, takewhile

import msgspec
import numpy as np
import numpy.typing as npt

from paddock.engine.candidates import COLDEST, CUTS, Candidates, Floats, Ids, Logits, top_k, top_k_rows, usable
from paddock.engine.grammar import Grammar
from paddock.engine.history import History
from paddock.engine.sampling_errors import no_token_left, sampling_failed
from paddock.errors import ConstraintFailed, PaddockError
from paddock.types import Sampled, SamplingParams, TokenLogprobs

# Part of `system_fingerprint`: raised whenever the same logits and seed may give another token.
PROFILE = 2

_MASK = (1 << 64) - 1
_XTC_DRAW = 0x5851F42D4C957F2D
_LARGEST_FAST_K = 256
_USUAL = ("top_k", "top_p", "min_p", "temperature")
_OF_SINGLE_TOKENS = ("penalties", "dry")
# A logit that lost this much never comes back, and a float32 still holds it.
_LARGEST_PENALTY = 1e34
_LARGEST_LOGIT = float(np.finfo(np.float32).max)
_NO_IDS = np.empty(0, np.int64)
_NO_BIAS = np.empty(0, np.float32)


def uniform(seed: int, drawn: int) -> float:
    """The `drawn`-th number in [0, 1) of this seed: a stateless hash (splitmix64), so nothing need be carried along."""
    z = (seed * 0xD1342543DE82EF95 + (drawn + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


class Sampler:
    """One request's way of choosing, with the state that it needs. Never shared between requests."""

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int] = (),
        *,
        end_tokens: frozenset[int] = frozenset(),
        breakers: Callable[[tuple[str, ...]], Collection[int] | npt.NDArray[np.int32]] = lambda _: (),
        grammar: Grammar | None = None,
    ) -> None:
        self.params = params
        self.grammar = grammar
        self._unconstrained: Logits | None = None
        self._seed = params.seed or 0
        self.drawn = 0
        self._surprise = 2 * params.mirostat_tau
        self._dictated: list[int] = []
        breaking = breakers(params.dry_sequence_breakers) if params.dry_multiplier else ()
        self._history = History(prompt if self._looks_back else (), breaking)
        if params.dry_multiplier:
            self._history.prepare()
        bias = dict.fromkeys(end_tokens, -math.inf) if params.ignore_eos else {}
        for token, amount in params.logit_bias:
            bias[token] = bias.get(token, 0.0) + amount
        self.bias_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self.bias = np.fromiter(bias.values(), np.float32, len(bias))

    def sibling(self, params: SamplingParams) -> Sampler:
        """For another answer to the same prompt, before anything was chosen; only the seed is another."""
        other = copy(self)
        other.params = params
        other.grammar = None if self.grammar is None else self.grammar.fork()
        vars(other).update(_seed=params.seed or 0, _dictated=[], _history=self._history.copy())
        return other

    @cached_property
    def _looks_back(self) -> bool:
        p = self.params
        return bool(
            (p.repeat_last_n and (p.repeat_penalty != 1 or p.presence_penalty or p.frequency_penalty))
            or p.dry_multiplier
        )

    @cached_property
    def greedy(self) -> bool:
        """Nothing but the largest logit matters."""
        return self._plain and self._largest_wins

    @cached_property
    def usual(self) -> bool:
        """Only the cheap samplers, in their default order: can be done for many rows at once."""
        p = self.params
        order = tuple(name for name in p.samplers if name in _USUAL)
        neutral = p.typical_p >= 1 and p.top_n_sigma <= 0 and not p.xtc_probability and not p.dynatemp_range
        return (
            self._plain and neutral and order == _USUAL and 0 < p.top_k <= _LARGEST_FAST_K
            and p.min_keep <= 1 and p.temperature >= COLDEST
        )  # fmt: skip

    @cached_property
    def _plain(self) -> bool:
        p = self.params
        return not self._looks_back and not p.mirostat and p.n_probs < 0

    @cached_property
    def _largest_wins(self) -> bool:
        """The temperature leaves only the likeliest token, and no sampler takes that one away before."""
        p = self.params
        return (
            p.temperature <= 0 and p.dynatemp_range <= 0 and "temperature" in p.samplers
            and (p.typical_p >= 1 or "typ_p" not in p.samplers)
            and (p.xtc_probability <= 0 or "xtc" not in p.samplers)
        )  # fmt: skip

    @property
    def biased(self) -> bool:
        return len(self.bias) > 0

    def constrain(self, row: Logits, grammar: Grammar) -> None:
        """Take out of the row, in place, what the constraint forbids. The model's own opinion is kept to be told."""
        if self.params.n_probs >= 0:
            self._unconstrained = row.copy()
        grammar.restrict(row)

    def dictate(self, tokens: Sequence[int]) -> None:
        """Have these chosen next, whatever the model would rather say."""
        self._dictated += tokens

    def overrule(self, row: Logits, chosen: Sampled) -> Sampled:
        """What was chosen, or what is dictated in its place."""
        if not self._dictated or chosen.error is not None:
            return chosen
        token = self._dictated.pop(0)
        if self._looks_back:
            self._history.replace_last(token)
        logprobs = None if self.params.n_probs < 0 else logprobs_of(row, token, self.params.n_probs)
        return Sampled(token, logprobs)

    def draw(self, weights: Floats) -> int:
        """An index, with a chance in proportion to its weight."""
        total = weights.cumsum()
        point = self.next_uniform() * total[-1]
        return min(int(np.searchsorted(total, point, side="right")), len(weights) - 1)

    def next_uniform(self) -> float:
        self.drawn += 1
        return uniform(self._seed, self.drawn - 1)

    def choose(self, row: Logits) -> Sampled:
        """The general case: every sampler, one row."""
        p = self.params
        adjusted = usable(self._adjusted(row))
        if adjusted is None:
            return self.dead_end()
        if p.mirostat:
            candidates = Candidates.every(adjusted)
            CUTS["temperature"](candidates, p)
            at, weights = self._mirostat(candidates)
        else:
            candidates = self._chain(adjusted)
            if not len(candidates.ids) or not candidates.logits.max() > -np.inf:
                return self.dead_end()
            weights = candidates.probabilities()
            # Also where one alone is left: the next draw's place must not depend on how this one went.
            at = self.draw(weights)
        token = int(candidates.ids[at])
        if self._looks_back:
            self._history.append(token)
        return Sampled(token, self._report(row, token, at, candidates, weights))

    def dead_end(self) -> Sampled:
        """What comes of a row in which every token is forbidden."""
        return Sampled(None, error=no_token_left(self.params, "" if self.grammar is None else self.grammar.param))

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _adjusted(self, row: Logits) -> Logits:
        """The row with what concerns single tokens: bias, and the penalties and DRY that no other sampler precedes."""
        if not self.biased and not self._looks_back:
            return row
        row = row.copy()
        row[self.bias_ids] += self.bias
        for name in takewhile(_OF_SINGLE_TOKENS.__contains__, self.params.samplers):
            self._reweigh(name, row)
        return row

    def _reweigh(self, name: str, row: Logits) -> None:
        if name == "penalties":
            self._penalise(row)
        else:
            self._dry(row)

    def _chain(self, row: Logits) -> Candidates:
        p = self.params
        order = list(dropwhile(_OF_SINGLE_TOKENS.__contains__, p.samplers))
        if self._largest_wins and not any(name in _OF_SINGLE_TOKENS for name in order):
            return Candidates.best(row, 1)
        if order and order[0] == "top_n_sigma" and p.top_n_sigma <= 0:
            del order[0]
        if order and order[0] == "top_k" and p.top_k > 0:
            candidates = Candidates.best(row, p.top_k)
            del order[0]
        else:
            candidates = Candidates.every(row)
        for name in order:
            if name == "xtc":
                self._xtc(candidates)
            elif name in CUTS:
                CUTS[name](candidates, p)
            elif self._looks_back:
                spread = np.full(len(row), -np.inf, np.float32)
                spread[candidates.ids] = candidates.logits
                self._reweigh(name, spread)
                candidates.logits = spread[candidates.ids].astype(np.float64)
                candidates.ordered = False
        return candidates

    def _penalise(self, row: Logits) -> None:
        p = self.params
        if not len(self._history.latest(p.repeat_last_n)):
            return
        ids, counts = self._history.counts(p.repeat_last_n, len(row))
        logits = row[ids]
        logits = np.where(logits <= 0, logits * p.repeat_penalty, logits / p.repeat_penalty)
        row[ids] = logits - counts * p.frequency_penalty - p.presence_penalty

    def _dry(self, row: Logits) -> None:
        """Make what would go on repeating an earlier passage the less likely, the longer the passage."""
        p = self.params
        if not p.dry_multiplier or p.dry_base < 1:
            return
        if len(self._history.latest(p.dry_penalty_last_n)) <= p.dry_allowed_length:
            return
        growth, most = math.log(p.dry_base), math.log(_LARGEST_PENALTY)
        ids, lengths = self._history.repeats(p.dry_penalty_last_n, p.dry_allowed_length)
        # There are few different lengths, however long the text: each takes a passage of its own.
        different, which = np.unique(lengths, return_inverse=True)
        powers = [min((length - p.dry_allowed_length) * growth, most) for length in different.tolist()]
        penalties = [min(p.dry_multiplier * math.exp(power), _LARGEST_PENALTY) for power in powers]
        row[ids] -= np.where(self._history.is_breaker(ids), np.float32(0), np.array(penalties, np.float32)[which])

    def _xtc(self, candidates: Candidates) -> None:
        """Now and then leave out all of the likely choices but the least likely of them."""
        p = self.params
        if p.xtc_probability <= 0 or p.xtc_threshold > 0.5 or len(candidates.ids) < 2:
            return
        if uniform(self._seed ^ _XTC_DRAW, self.drawn) >= p.xtc_probability:
            return
        candidates.order()
        weights = candidates.probabilities()
        above = int(np.count_nonzero((weights >= p.xtc_threshold) & (weights > 0)))
        if above > 1 and len(candidates.ids) - above + 1 >= p.min_keep:
            candidates.take(slice(above - 1, None))

    def _mirostat(self, candidates: Candidates) -> tuple[int, Floats]:
        """Keep the surprise of the text near `tau` by adapting where the candidates are cut off."""
        p = self.params
        candidates.order()
        weights = candidates.probabilities()
        if p.mirostat == 1:
            top = weights[:100]
            steps = np.log(np.arange(2, len(top) + 1) / np.arange(1, len(top)))
            falls = -np.diff(np.log(np.maximum(top, 1e-30)))
            slope = float(np.sum(steps * falls) / np.sum(steps * steps)) if len(top) > 1 else 1.0
            excess = slope - 1
            size = len(weights)
            # A flat row or a large tau: beyond every float, which means to keep all.
            with np.errstate(all="ignore"):
                power = excess * np.exp2(self._surprise) / (1 - np.float64(size) ** -excess)
                cut = float(power ** (1 / np.float64(slope)))
            keep = int(max(1.0, cut)) if cut < size else size
        else:
            with np.errstate(divide="ignore"):
                keep = max(1, int(np.count_nonzero(-np.log2(weights) <= self._surprise)))
        candidates.take(slice(keep))
        weights = candidates.probabilities()
        at = self.draw(weights)
        self._surprise -= p.mirostat_eta * (-math.log2(max(float(weights[at]), 1e-30)) - p.mirostat_tau)
        return at, weights

    def _report(
        self, row: Logits, token: int, at: int, candidates: Candidates, weights: Floats
    ) -> TokenLogprobs | None:
        p = self.params
        if p.n_probs < 0:
            return None
        if p.post_sampling_probs:
            logs = np.log(np.maximum(weights, 1e-45))
            likeliest = np.argsort(-weights, kind="stable")[: p.n_probs]
            return TokenLogprobs(float(logs[at]), [(int(candidates.ids[i]), float(logs[i])) for i in likeliest])
        return logprobs_of(row if self._unconstrained is None else self._unconstrained, token, p.n_probs)


def logprobs_of(row: Logits, token: int, count: int) -> TokenLogprobs:
    """The model's own opinion of a token, before any sampler."""
    peak = float(row.max())
    total = peak + math.log(float(np.exp(row.astype(np.float64) - peak).sum()))
    best = top_k(row, count) if count else ()
    return TokenLogprobs(float(row[token]) - total, [(int(id), float(row[id]) - total) for id in best])


class Crowd:
    """The samplers of one step. What they have in common is worked out once and kept while the same ones go on."""

    def __init__(self, samplers: Sequence[Sampler]) -> None:
        self.samplers = list(samplers)
        self._greedy = [index for index, sampler in enumerate(samplers) if sampler.greedy]
        self._usual = [index for index, sampler in enumerate(samplers) if sampler.usual]
        self._special = [index for index, sampler in enumerate(samplers) if not sampler.greedy and not sampler.usual]
        biased = [index for index in (*self._greedy, *self._usual) if samplers[index].biased]
        sizes = [len(samplers[index].bias_ids) for index in biased]
        self._biased_rows = np.repeat(np.array(biased, np.int64), sizes)
        self._biased_ids = np.concatenate([_NO_IDS, *(samplers[index].bias_ids for index in biased)])
        self._bias = np.concatenate([_NO_BIAS, *(samplers[index].bias for index in biased)])
        params = [samplers[index].params for index in self._usual]
        self._top_k = np.array([[p.top_k] for p in params])
        self._top_p = np.array([[p.top_p if p.top_p < 1 else 2.0] for p in params])
        self._min_p = np.array([[p.min_p] for p in params])
        self._temperature = np.array([[p.temperature] for p in params])
        self._widest = max((p.top_k for p in params), default=0)
        self._constrained = [(index, s, s.grammar) for index, s in enumerate(samplers) if s.grammar is not None]

    def choose(self, rows: Logits) -> list[Sampled]:
        """One token for each row, by its own sampler, and within its own constraint where it has one.

        Whatever goes wrong in one row is told of that row, and no other is the worse for it.
        """
        failed: dict[int, Sampled] = {}
        for index, sampler, grammar in self._constrained:
            try:
                sampler.constrain(rows[index], grammar)
            except Exception as error:
                failed[index] = Sampled(None, error=sampling_failed(error))
        chosen = self._choose_freely(rows)
        for index, sampler in enumerate(self.samplers):
            try:
                chosen[index] = failed.get(index) or _settle(sampler, rows[index], chosen[index])
            except Exception as error:
                chosen[index] = Sampled(None, error=sampling_failed(error))
        return chosen

    def _choose_freely(self, rows: Logits) -> list[Sampled]:
        before = [self.samplers[index].drawn for index in self._usual]
        try:
            with self._biases(rows):
                results = self._choose_together(rows)
        except Exception:
            # What one row broke is done again row by row, so that only that one fails.
            for index, drawn in zip(self._usual, before, strict=True):
                self.samplers[index].drawn = drawn
            return [_choose_alone(sampler, row) for sampler, row in zip(self.samplers, rows, strict=True)]
        for index in self._special:
            results[index] = _choose_alone(self.samplers[index], rows[index])
        return results

    def _choose_together(self, rows: Logits) -> list[Sampled]:
        """For the rows that need no special treatment; the others are left for later."""
        if len(self._greedy) == len(rows):
            tokens = rows.argmax(axis=1)
            usual_ids = _NO_IDS
        else:
            tokens = np.zeros(len(rows), np.int64)
            for index in self._greedy:
                tokens[index] = rows[index].argmax()
            usual_ids = np.asarray(self._usual, np.int64)
            if self._usual:
                tokens[usual_ids] = self._choose_usual(rows)
        results = [Sampled(token) for token in tokens.tolist()]
        for index in (*self._greedy, *usual_ids.tolist()):
            if not rows[index, tokens[index]] > -np.inf:  # forbidden, or not a number
                results[index] = self._choose_broken(index, rows[index])
        return results

    def _choose_broken(self, index: int, row: Logits) -> Sampled:
        """From a row whose best is no number, or in which nothing is left. Its bias is in it already."""
        sampler, repaired = self.samplers[index], usable(row)
        if repaired is None:
            return sampler.dead_end()
        if sampler.greedy:
            return Sampled(int(repaired.argmax()))
        raise FloatingPointError("a logit was chosen that is not a number")

    @contextmanager
    def _biases(self, rows: Logits) -> Iterator[None]:
        """The rows with their biases, for as long as it takes: a few tokens change, so a copy of each row is spared."""
        if not len(self._bias):
            yield
            return
        before = rows[self._biased_rows, self._biased_ids]
        rows[self._biased_rows, self._biased_ids] = before + self._bias
        try:
            yield
        finally:
            rows[self._biased_rows, self._biased_ids] = before

    def _choose_usual(self, rows: Logits) -> Ids:
        """Top-k, top-p, min-p, temperature and the draw, as matrices with a row for each request."""
        which, widest = self._usual, min(self._widest, rows.shape[1])
        ids = top_k_rows(rows, which, widest)
        logits = rows[np.asarray(which)[:, None], ids].astype(np.float64)
        if not np.isfinite(logits[:, 0]).all() or np.isnan(logits).any():
            # An empty row is found out by its caller; what is not a number must not spread over the row.
            logits = np.nan_to_num(logits, nan=-np.inf, posinf=_LARGEST_LOGIT, neginf=-np.inf)
            logits[~np.isfinite(logits[:, 0])] = 0.0
        logits -= logits[:, :1]
        logits[np.arange(widest) >= self._top_k] = -np.inf
        weights = np.exp(logits)
        # A running total, not a sum: a sum's rounding would depend on the width, that is on the neighbours.
        total = weights.cumsum(axis=1)
        # Kept: while those before it make less than top_p, and if at least min_p times as likely as the first.
        kept = (total - weights < self._top_p * total[:, -1:]) & (weights >= self._min_p)
        kept[:, 0] = True
        weights = np.where(kept, np.exp(logits / self._temperature), 0.0)
        total = weights.cumsum(axis=1)
        points = np.array([[self.samplers[index].next_uniform()] for index in which]) * total[:, -1:]
        at = np.minimum((total <= points).sum(axis=1), kept.cumsum(axis=1).argmax(axis=1))
        chosen: Ids = ids[np.arange(len(which)), at]
        return chosen


def _choose_alone(sampler: Sampler, row: Logits) -> Sampled:
    try:
        return sampler.choose(row)
    except Exception as error:
        return Sampled(None, error=sampling_failed(error))


def _settle(sampler: Sampler, row: Logits, chosen: Sampled) -> Sampled:
    """What is dictated instead, and how far that brings the constraint."""
    chosen = sampler.overrule(row, chosen)
    grammar = sampler.grammar
    if grammar is None or chosen.error is not None:
        return chosen
    if chosen.token is None or not grammar.consume(chosen.token):
        return Sampled(None, error=_constraint_failed(sampler, grammar))
    return msgspec.structs.replace(chosen, last=True) if grammar.complete else chosen


def _constraint_failed(sampler: Sampler, grammar: Grammar) -> PaddockError:
    if not grammar.problem:
        return no_token_left(sampler.params, grammar.param)
    reason = f"the answer could not be kept within {grammar.param or 'its grammar'}: {grammar.problem}"
    return ConstraintFailed(reason, param=grammar.param or None)


def choose_all(rows: Logits, samplers: Sequence[Sampler]) -> list[Sampled]:
    """One token for each row, by its own sampler."""
    return Crowd(samplers).choose(rows)
