from __future__ import annotations

from collections.abc import Sequence

from paddock.gateway.dialects.openai.schema import CompletionTokensDetails, CompletionUsage, PromptTokensDetails
from paddock.types import Usage


def usage_of(prompts: Sequence[Sequence[Usage]]) -> CompletionUsage:
    """Of the answers to each prompt. A prompt counts once, however many answers were given to it."""
    prompt = sum(answers[0].prompt_tokens for answers in prompts)
    completion = sum(usage.completion_tokens for answers in prompts for usage in answers)
    reasoning = sum(usage.reasoning_tokens for answers in prompts for usage in answers)
    cached = sum(min(usage.cached_tokens for usage in answers) for answers in prompts)
    return CompletionUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=reasoning),
    )
