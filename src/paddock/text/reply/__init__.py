"""Reasoning and tool calls in a reply: how to parse them, and how to enforce them by a grammar."""
