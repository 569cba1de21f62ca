"""Authentication and limits: API keys, permissions, the origin guard, rate limits, metering and usage."""
