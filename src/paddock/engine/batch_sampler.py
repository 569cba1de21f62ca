"""Logits → tokens, for all requests of a step. Rows with common samplers are computed at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from paddock.engine.candidates import Floats, Ids, Logits, repair, top_k_rows
from paddock.engine.draws import Uniforms
from paddock.engine.grammar import Grammar
from paddock.engine.near_best import limits_of, near_best
from paddock.engine.pause import Pause
from paddock.engine.penalties import Penalized, Penalty, SelectedText
from paddock.engine.sampler import Replaced, Sampler
from paddock.engine.sampling_errors import no_token_left, sampling_failed
from paddock.engine.selected_rows import OrderedRows, SelectedRows, likely_rows
from paddock.errors import ConstraintFailed, PaddockError
from paddock.types import Sampled

_LARGEST_LOGIT = float(np.finfo(np.float32).max)
_FEW_BIASES = 16
"""So many of each row are added faster without an order of the tokens."""
_FEW_ROWS = 8
"""Fewer random numbers are drawn faster one by one."""
_MANY_COUNTED = 4096
"""Penalties for so many tokens take longer than looking for the likely ones first."""
_NO_IDS = np.empty(0, np.int64)
_NO_BIAS = np.empty(0, np.float32)


class BatchSampler:
    """The samplers of one step. Their parameters are collected once, and reused while the same requests run."""

    def __init__(self, samplers: Sequence[Sampler], pause: Pause | None = None) -> None:
        """`pause`: of looking for the likely tokens of long texts first, also with other samplers."""
        self.samplers = list(samplers)
        self._greedy = [index for index, sampler in enumerate(samplers) if sampler.is_greedy]
        self._batched = [index for index, sampler in enumerate(samplers) if sampler.is_batchable]
        self._unlimited = [index for index, sampler in enumerate(samplers) if sampler.is_unlimited]
        together = sorted((*self._greedy, *self._batched, *self._unlimited))
        self._single = sorted({*range(len(samplers))} - {*together})
        self._penalized = [(index, s) for index in together if (s := samplers[index]).uses_history]
        self._penalties = _grouped(self._penalized)
        biased = [index for index in together if len(samplers[index].bias)]
        sizes = [len(samplers[index].bias_ids) for index in biased]
        self._biased_rows = np.repeat(np.array(biased, np.int64), sizes)
        self._biased_ids = np.concatenate([_NO_IDS, *(samplers[index].bias_ids for index in biased)])
        self._bias = np.concatenate([_NO_BIAS, *(samplers[index].bias for index in biased)])
        self._least_biased = int(self._biased_ids.min(initial=0))
        self._largest_biased = int(self._biased_ids.max(initial=-1))
        params = [samplers[index].params for index in self._batched]
        self._top_k = np.array([[p.top_k] for p in params])
        self._top_p = np.array([[p.top_p if p.top_p < 1 else 2.0] for p in params])
        self._min_p = np.array([[p.min_p] for p in params])
        self._width = max((p.top_k for p in params), default=0)
        self._has_one_width = all(p.top_k == self._width for p in params)
        self._batched_rows = np.array(self._batched, np.int64)[:, None]
        self._temperatures = np.array([[sampler.params.temperature] for sampler in samplers])
        self._uniforms = Uniforms([sampler.seed for sampler in samplers])
        self._limits = limits_of([samplers[index].params for index in self._unlimited])
        is_top_k = len(self._batched) == len(samplers) and not self._penalties
        self._has_only_top_k = is_top_k and len(self._bias) <= _FEW_BIASES * len(samplers)
        self._counting = [s for _, s in self._penalized] if all(s.is_selectable for s in samplers) else []
        self._pause = pause or Pause()
        self._constrained = [(index, s, s.grammar) for index, s in enumerate(samplers) if s.grammar is not None]

    def choose(self, rows: Logits) -> list[Sampled]:
        """Choose a token for each row with its own sampler and grammar. A failure in one row affects no other.

        The rows may be changed in place by grammars, biases and penalties, and stay so.
        """
        with np.errstate(all="ignore"):  # rows with NaN or infinities are repaired, and need no warning
            return self._choose_likely(rows) or self._choose(rows)

    def choose_selected(self, selected: SelectedRows) -> list[Sampled] | None:
        """`choose` from the most likely tokens of each row, for selectable samplers, with the same results. None, with
        nothing changed: the other tokens might matter.
        """
        if self._has_only_top_k:
            return self._attempt(lambda: self._choose_top_k(selected))
        return self._attempt(lambda: self._choose_ordered(selected.ordered(), selected.bound, selected.n_vocab))

    def _choose_likely(self, rows: Logits) -> list[Sampled] | None:
        """The same from whole rows, if penalties count so many tokens that it is faster. None: they do not, or the
        other tokens might matter.
        """
        many = sum(len(s.history) >= _MANY_COUNTED and s.counts_many(_MANY_COUNTED) for s in self._counting)
        if not many or 2 * many < len(self.samplers):
            return None
        if not self._pause.has_ended() or (likely := likely_rows(rows)) is None:
            return None
        chosen = self._attempt(lambda: self._choose_ordered(likely.rows, likely.bound, rows.shape[1]))
        if chosen is None:
            self._pause.fail()
        else:
            self._pause.succeed()
        return chosen

    def _attempt(self, choose: Callable[[], list[int] | None]) -> list[Sampled] | None:
        drawn = [sampler.drawn for sampler in self.samplers]
        try:
            with np.errstate(all="ignore"):
                tokens = choose()
        except Exception:  # whole rows show whose error it is
            for sampler, before in zip(self.samplers, drawn, strict=True):
                sampler.drawn = before
            return None
        if tokens is None:
            return None
        for index, sampler in self._penalized:
            sampler.remember(tokens[index])
        no_row = np.empty(0, np.float32)  # only for probabilities, which are not selectable
        return [
            sampler.apply_forced(no_row, Sampled(token)) for sampler, token in zip(self.samplers, tokens, strict=True)
        ]

    def _choose_top_k(self, selected: SelectedRows) -> list[int] | None:
        """The usual case: every row has a top-k and no penalty, and there are few biases."""
        if len(self._bias):
            self._check_ids(selected.n_vocab)
            selected = selected.biased(self._biased_rows, self._biased_ids, self._bias)
        ids, best = selected.top_k(self._width)
        if not (np.take_along_axis(best, self._top_k - 1, axis=1)[:, 0] > selected.bound).all():
            return None
        tokens: list[int] = self._draw(self._batched, ids, *self._filter(best.astype(np.float64))).tolist()
        return tokens

    def _choose_ordered(self, rows: OrderedRows, bound: Logits, n_vocab: int) -> list[int] | None:
        self._lower(rows, n_vocab)
        places = self._find_places(rows.logits, bound)
        if places is None:
            return None
        tokens: list[int] = rows.ids[np.arange(len(places)), places].tolist()
        return tokens

    def _lower(self, selected: OrderedRows, n_vocab: int) -> None:
        """`_adjust` for selected rows."""
        rows, ids = selected
        self._check_ids(n_vocab)
        logits = rows.reshape(-1)
        if len(self._bias):
            every = (ids + np.arange(0, len(rows) * n_vocab, n_vocab)[:, None]).reshape(-1)
            wanted = self._biased_rows * n_vocab + self._biased_ids
            places = np.minimum(np.searchsorted(every, wanted), len(every) - 1)
            is_there = every[places] == wanted
            logits[places[is_there]] += self._bias[is_there]
        for penalty, members in self._penalties:
            width = rows.shape[1]
            penalized = [Penalized(index * width, SelectedText(s.history, ids[index])) for index, s in members]
            changes = penalty.changes(logits, penalized)
            logits[changes.places] = changes.after

    def _find_places(self, rows: Logits, bound: Logits) -> Ids | None:
        """The place of the chosen token in each row. None, before any draw: tokens that are not there may matter."""
        best: Ids = rows.argmax(axis=1)
        if not (rows[np.arange(len(rows)), best] > bound).all():
            return None
        draws: list[tuple[list[int], Ids, Floats, npt.NDArray[np.bool_]]] = []
        if self._batched:
            which = self._batched
            found, logits = self._best(rows)
            last = np.take_along_axis(logits, self._top_k - 1, axis=1)
            if not (last[:, 0] > bound[which]).all():
                return None
            draws.append((which, found, *self._filter(logits)))
        if self._unlimited:
            which = self._unlimited
            peaks = rows[which, best[which]].astype(np.float64)
            if not (peaks + self._limits.distance[:, 0] > bound[which]).all():
                return None
            near = near_best(rows, which, self._limits)
            if not near.kept.all():
                return None
            draws.append((which, near.ids, near.logits, np.arange(near.ids.shape[1]) < near.kept[:, None]))
        places = best
        for which, found, logits, kept in draws:
            places[which] = self._draw(which, found, logits, kept)
        return places

    def _choose(self, rows: Logits) -> list[Sampled]:
        failed: dict[int, Sampled] = {}
        for index, sampler, grammar in self._constrained:
            try:
                sampler.constrain(rows[index], grammar)
            except BaseException as error:
                failed[index] = Sampled(None, error=sampling_failed(error))
        chosen = self._choose_unconstrained(rows)
        for index, sampler in enumerate(self.samplers):
            try:
                chosen[index] = failed.get(index) or _finish(sampler, rows[index], chosen[index])
            except BaseException as error:
                chosen[index] = Sampled(None, error=sampling_failed(error))
        return chosen

    def _choose_unconstrained(self, rows: Logits) -> list[Sampled]:
        drawing = [*self._batched, *self._unlimited]
        before = [self.samplers[index].drawn for index in drawing]
        replaced: Replaced = []
        assert rows.flags.c_contiguous, "the rows are changed in place"
        logits = rows.reshape(-1)
        try:
            self._adjust(logits, rows.shape[1], replaced)
            results, undecided = self._choose_batched(rows)
        except Exception:
            # Repeat row by row, so that only the row that failed has an error.
            Sampler.restore(logits, replaced)
            for index, drawn in zip(drawing, before, strict=True):
                self.samplers[index].drawn = drawn
            return [_choose_single(sampler, row) for sampler, row in zip(self.samplers, rows, strict=True)]
        for index, sampler in self._penalized:
            token = results[index].token
            if token is not None and index not in undecided:
                sampler.remember(token)
        if undecided:
            Sampler.restore(logits, replaced)
        for index in (*self._single, *undecided):
            results[index] = _choose_single(self.samplers[index], rows[index])
        return results

    def _choose_batched(self, rows: Logits) -> tuple[list[Sampled], list[int]]:
        """Choose for the greedy, batched and unlimited rows. The others get a placeholder, and so do the unlimited rows
        that are also returned.
        """
        undecided: list[int] = []
        chosen = self._greedy
        if len(self._greedy) == len(rows):
            tokens = rows.argmax(axis=1)
        else:
            tokens = np.zeros(len(rows), np.int64)
            for index in self._greedy:
                tokens[index] = rows[index].argmax()
            if self._batched:
                tokens[self._batched] = self._filter_and_draw(rows)
            decided: list[int] = []
            if self._unlimited:
                near = near_best(rows, self._unlimited, self._limits)
                is_decided = near.kept > 0
                decided = np.array(self._unlimited)[is_decided].tolist()
                undecided = np.array(self._unlimited)[~is_decided].tolist()
                if decided:
                    kept = np.arange(near.ids.shape[1]) < near.kept[is_decided, None]
                    tokens[decided] = self._draw(decided, near.ids[is_decided], near.logits[is_decided], kept)
            chosen = [*self._greedy, *self._batched, *decided]
        results = [Sampled(token) for token in tokens.tolist()]
        for index in chosen:
            if not rows[index, tokens[index]] > -np.inf:  # forbidden or NaN
                results[index] = self._choose_invalid(index, rows[index])
        return results, undecided

    def _choose_invalid(self, index: int, row: Logits) -> Sampled:
        """Choose from a row whose best logit is NaN, or in which no token is left. The row includes its bias."""
        sampler, repaired = self.samplers[index], repair(row)
        if repaired is None:
            return sampler.no_token()
        if sampler.is_greedy:
            return Sampled(int(repaired.argmax()))
        raise FloatingPointError("the chosen logit is not a number")

    def _adjust(self, logits: Logits, n_vocab: int, replaced: Replaced) -> None:
        """Apply the biases and the first penalties to the logits of all rows, in place. What `Sampler.restore` needs is
        added to `replaced`.
        """
        self._check_ids(n_vocab)
        if len(self._bias):
            places = self._biased_rows * n_vocab + self._biased_ids
            replaced.append((places, logits[places]))
            logits[places] += self._bias
        for penalty, members in self._penalties:
            penalized = [Penalized(index * n_vocab, sampler.history) for index, sampler in members]
            changes = penalty.changes(logits, penalized)
            replaced.append((changes.places, changes.before))
            logits[changes.places] = changes.after

    def _check_ids(self, n_vocab: int) -> None:
        """Raise an error if a bias or a penalty would change another row."""
        if self._least_biased < 0 or self._largest_biased >= n_vocab:
            raise IndexError(f"a bias is for a token outside of the vocabulary of {n_vocab}")
        for _, sampler in self._penalized:
            sampler.history.check(n_vocab)

    def _filter_and_draw(self, rows: Logits) -> Ids:
        """Top-k, top-p, min-p and the draw, as matrices with one row per request."""
        ids, logits = self._best(rows)
        return self._draw(self._batched, ids, *self._filter(logits))

    def _best(self, rows: Logits) -> tuple[Ids, Floats]:
        """The ids and logits of the most likely tokens, as many as the largest top-k asks for."""
        which, width = self._batched, min(self._width, rows.shape[1])
        ids = top_k_rows(rows, which, width)
        return ids, rows[self._batched_rows, ids].astype(np.float64)

    def _filter(self, logits: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """The logits relative to the best, and which of them top-k, top-p and min-p keep."""
        if not np.isfinite(logits[:, 0]).all() or np.isnan(logits).any():
            # The caller finds empty rows. NaN must not spread over the row.
            logits = np.nan_to_num(logits, nan=-np.inf, posinf=_LARGEST_LOGIT, neginf=-np.inf)
            logits[~np.isfinite(logits[:, 0])] = 0.0
        logits -= logits[:, :1]
        if not self._has_one_width:
            logits[np.arange(logits.shape[1]) >= self._top_k] = -np.inf
        weights = np.exp(logits)
        # cumsum, not sum: the rounding of a sum depends on the width, which depends on the other requests.
        total = weights.cumsum(axis=1)
        # Keep a token if those before it add up to less than top_p and it has at least min_p of the best probability.
        kept = (total - weights < self._top_p * total[:, -1:]) & (weights >= self._min_p)
        kept[:, 0] = True
        return logits, kept

    def _draw(self, which: list[int], ids: Ids, logits: Floats, kept: npt.NDArray[np.bool_]) -> Ids:
        """Temperature and the draw, among the candidates of each row that are kept. The first is the most likely."""
        weights = np.where(kept, np.exp((logits - logits[:, :1]) / self._temperatures[which]), 0.0)
        total = weights.cumsum(axis=1)
        points = self._next_uniforms(which)[:, None] * total[:, -1:]
        at = np.minimum((total <= points).sum(axis=1), kept.cumsum(axis=1).argmax(axis=1))
        chosen: Ids = ids[np.arange(len(which)), at]
        return chosen

    def _next_uniforms(self, which: list[int]) -> Floats:
        samplers = [self.samplers[index] for index in which]
        if len(which) < _FEW_ROWS:
            return np.array([sampler.next_uniform() for sampler in samplers])
        drawn = [sampler.drawn for sampler in samplers]
        for sampler in samplers:
            sampler.drawn += 1
        return self._uniforms.draw(which, drawn)


def _grouped(penalized: list[tuple[int, Sampler]]) -> list[tuple[Penalty, list[tuple[int, Sampler]]]]:
    """The penalties that come before all filters, in an order that keeps each request's own, and the rows for each."""
    groups: dict[tuple[int, Penalty], list[tuple[int, Sampler]]] = {}
    for index, sampler in penalized:
        for place, penalty in enumerate(sampler.first_penalties):
            groups.setdefault((place, penalty), []).append((index, sampler))
    return [(penalty, members) for (_, penalty), members in sorted(groups.items(), key=lambda group: group[0][0])]


def _choose_single(sampler: Sampler, row: Logits) -> Sampled:
    try:
        return sampler.choose(row)
    except BaseException as error:
        return Sampled(None, error=sampling_failed(error))


def _finish(sampler: Sampler, row: Logits, chosen: Sampled) -> Sampled:
    """Apply forced tokens, then advance the grammar."""
    chosen = sampler.apply_forced(row, chosen)
    grammar = sampler.grammar
    if grammar is None or chosen.error is not None:
        return chosen
    if chosen.token is None or not grammar.consume(chosen.token):
        return Sampled(None, error=_constraint_failed(sampler, grammar))
    return msgspec.structs.replace(chosen, last=True) if grammar.complete else chosen


def _constraint_failed(sampler: Sampler, grammar: Grammar) -> PaddockError:
    if not grammar.problem:
        return no_token_left(sampler.params, grammar.param)
    reason = f"the answer cannot match {grammar.param or 'its grammar'}: {grammar.problem}"
    return ConstraintFailed(reason, param=grammar.param or None)
