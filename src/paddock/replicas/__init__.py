"""Replicas of one model: routing, retries, health checks and requests to remote servers."""
