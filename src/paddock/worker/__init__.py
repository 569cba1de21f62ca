"""The process that owns one model: `python -m paddock.worker CONNECTION CPU_LOCK`, started by the fleet."""
