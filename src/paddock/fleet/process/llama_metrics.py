"""A worker's metrics by llama-server's names."""

from __future__ import annotations

from paddock.fleet.lifecycle.model_state import ModelStatus
from paddock.fleet.lifecycle.records import ModelRecord


def llamacpp_levels(status: ModelStatus, record: ModelRecord, now: float) -> dict[str, float]:
    """Gauges."""
    levels = status.levels
    processing = min(status.running, status.slots)
    prompt_speed, speed = record.speeds(now)
    return {
        "llamacpp:requests_processing": processing,
        "llamacpp:requests_deferred": status.running - processing + status.waiting,
        "llamacpp:prompt_tokens_seconds": prompt_speed,
        "llamacpp:predicted_tokens_seconds": speed,
        "llamacpp:kv_cache_tokens": levels.cells_used,
        "llamacpp:kv_cache_usage_ratio": levels.cells_used / levels.cells if levels.cells else 0.0,
        "llama_slots_processing": processing,
    }


def llamacpp_totals(record: ModelRecord) -> dict[str, float]:
    """Counters, which never decrease."""
    tally = record.tally
    steps = tally.step_seconds.count
    return {
        "llamacpp:prompt_tokens_total": tally.prompt_tokens,
        "llamacpp:prompt_tokens_cached_total": tally.cached_tokens,
        "llamacpp:prompt_seconds_total": tally.prompt_seconds,
        "llamacpp:tokens_predicted_total": tally.generated_tokens,
        "llamacpp:tokens_predicted_seconds_total": tally.inter_token_seconds.sum,
        "llamacpp:n_decode_total": steps,
        "llamacpp:n_tokens_max": record.longest,
        "llamacpp:n_busy_slots_per_decode": tally.step_sequences.sum / max(steps, 1),
        "llamacpp:spec_decode_num_draft_tokens_total": tally.drafted_tokens,
        "llamacpp:spec_decode_num_accepted_tokens_total": tally.accepted_tokens,
        "llamacpp:spec_decode_num_drafts_total": tally.drafts,
        "llama_tokens_generated_total": tally.generated_tokens,
    }
