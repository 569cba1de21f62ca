"""The results of a run: summary, tables, charts and notes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from paddock_lab.prefix_cache.designs import FIRST, HIT, JOINS, MISS, RETURNS, WARM_UP
from paddock_lab.prefix_cache.experiment import Observation
from paddock_lab.report import Cell, Findings, Picture, Table
from paddock_lab.report.pictures import distributions, lines
from paddock_lab.statistics import Estimate, in_words, median, number, percentile, ratio_of_medians

_WHAT = {
    FIRST: "when A is not cached yet",
    JOINS: "when a tenant joins",
    RETURNS: "when a tenant returns",
}


class Samples:
    """The observations without warm-up trials, by backend and kind."""

    def __init__(self, observations: Sequence[Observation], backends: Sequence[str]) -> None:
        self.counted = [observation for observation in observations if not observation.dropped]
        self.backends = backends

    def of(self, backend: str, kind: str) -> list[Observation]:
        return [
            observation
            for observation in self.counted
            if (observation.backend, observation.kind) == (backend, kind) and not observation.error
        ]

    def milliseconds(self, backend: str, kind: str) -> list[float]:
        return [1000 * observation.ttft for observation in self.of(backend, kind) if observation.ttft is not None]

    def tokens(self, backend: str, kind: str) -> tuple[float | None, float | None]:
        """The medians of prompt tokens and cached tokens."""
        observation = self.of(backend, kind)
        prompt = [each.prompt_tokens for each in observation if each.prompt_tokens is not None]
        cached = [each.cached_tokens for each in observation if each.cached_tokens is not None]
        return _median(prompt), _median(cached)


def removal_findings(observations: Sequence[Observation], backends: Sequence[str]) -> Findings:
    samples = Samples(observations, backends)
    findings, rows = Findings(notes=_failures(samples)), list[tuple[Cell, ...]]()
    for backend in backends:
        hit, miss = samples.milliseconds(backend, HIT), samples.milliseconds(backend, MISS)
        if not hit or not miss:
            continue
        ratio = ratio_of_medians(miss, hit)
        findings.summary.append(
            f"{backend}: without A the first token takes {in_words(ratio)}: {number(median(miss).value)} ms, and "
            f"{number(median(hit).value)} ms with a cached prefix.{_cached_tokens_text(samples, backend)}"
        )
        tokens = *samples.tokens(backend, HIT), *samples.tokens(backend, MISS)
        rows.append((backend, len(hit), median(hit), median(miss), ratio, *tokens))
        findings.notes += _missing_prefixes(samples, backend)
    columns = (
        *("backend", "trials", "T2 hit (ms)", "T3 miss (ms)", "T3 / T2"),
        *("T2 prompt tokens", "T2 cached", "T3 prompt tokens", "T3 cached"),
    )
    findings.tables = [Table("Time to the first token, medians with 95 % intervals", columns, rows)]
    findings.pictures = _pictures(samples, (HIT, MISS))
    return findings


def tenant_findings(observations: Sequence[Observation], backends: Sequence[str]) -> Findings:
    """The other backends are compared with the first one."""
    samples = Samples(observations, backends)
    findings, rows = Findings(notes=_failures(samples)), list[tuple[Cell, ...]]()
    kinds = [kind for kind in (RETURNS, JOINS, FIRST) if any(samples.of(backend, kind) for backend in samples.backends)]
    for kind in kinds:
        base = samples.milliseconds(backends[0], kind)
        for backend in backends:
            values = samples.milliseconds(backend, kind)
            if not values:
                continue
            prompt, cached = samples.tokens(backend, kind)
            ratio = ratio_of_medians(values, base) if base and backend != backends[0] else None
            rows.append((kind, backend, len(values), median(values), percentile(values, 95), prompt, cached, ratio))
            findings.summary.append(_tenant_line(kind, backend, median(values), ratio, backends[0]))
    columns = (
        *("kind", "backend", "requests", "first token (ms)", "95th percentile (ms)"),
        *("prompt tokens", "cached", f"against {backends[0]}"),
    )
    note = (
        "first: A is not cached yet. joins: A is cached by other tenants, B is new. returns: A and B were sent before."
    )
    findings.tables = [Table("Time to the first token, medians with 95 % intervals", columns, rows, note)]
    findings.pictures = _pictures(samples, kinds)
    return findings


def quantization_note(bits: Mapping[str, float | None]) -> str:
    """Which comparisons the quantizations allow; `bits` are bits per weight by backend."""
    known = ", ".join(f"{name} {'unknown' if each is None else f'{each:.1f}'}" for name, each in bits.items())
    same = None not in bits.values() and len({round(each or 0, 1) for each in bits.values()}) == 1
    note = f"Quantization, in bits per weight: {known}. GGUF files are quantized; other servers often use 16 bits."
    note += " Times to the first token depend on it; the ratio of one backend's own times does not."
    if len(bits) > 1 and not same:
        note += (
            " Compare the times of two backends only if their weights have the same size (Q8_0 is close to 16 bits)."
        )
    return note


def _tenant_line(kind: str, backend: str, found: Estimate, ratio: Estimate | None, base: str) -> str:
    line = f"{backend}: {_WHAT[kind]}, the first token takes {number(found.value)} ms"
    return f"{line}: {in_words(ratio, f'as long as with {base}')}." if ratio else f"{line}."


def _cached_tokens_text(samples: Samples, backend: str) -> str:
    parts = []
    for kind, name in ((HIT, "a hit"), (MISS, "a miss")):
        prompt, cached = samples.tokens(backend, kind)
        if prompt is not None and cached is not None:
            parts.append(f"{cached:.0f} of {prompt:.0f} prompt tokens were cached on {name}")
    return f" {', '.join(parts)}." if parts else ""


def _missing_prefixes(samples: Samples, backend: str) -> list[str]:
    """After a warm-up request the server should have cached its prompt. Otherwise the hit is not a hit."""
    checked = [
        (observation.remembered_tokens, observation.prompt_tokens)
        for observation in samples.of(backend, WARM_UP)
        if observation.remembered_tokens is not None and observation.prompt_tokens is not None
    ]
    missing = sum(cached < prompt - 1 for cached, prompt in checked)
    return [f"{backend}: {missing} of {len(checked)} times no slot had the prompt after its warm-up"] if missing else []


def _failures(samples: Samples) -> list[str]:
    notes = []
    for backend in samples.backends:
        failed = [
            observation for observation in samples.counted if observation.backend == backend and observation.error
        ]
        if failed:
            notes.append(f"{backend}: {len(failed)} requests failed, the first with: {failed[0].error}")
    return notes


def _pictures(samples: Samples, kinds: Sequence[str]) -> list[Picture]:
    by_kind = {
        (backend, kind): values
        for backend in samples.backends
        for kind in kinds
        if (values := samples.milliseconds(backend, kind))
    }
    if not by_kind:
        return []
    series = {
        f"{backend} {kind}": [
            (observation.at, 1000 * observation.ttft)
            for observation in samples.of(backend, kind)
            if observation.ttft is not None
        ]
        for backend, kind in by_kind
    }
    label = "time to the first token (ms)"
    return [
        Picture(
            "ttft",
            "Time to the first token: every request, median and quartiles",
            distributions(by_kind, label),
        ),
        Picture(
            "over-time",
            "Time to the first token over the run",
            lines(series, "seconds into the run", label),
        ),
    ]


def _median(values: Sequence[int]) -> float | None:
    return statistics.median(values) if values else None
