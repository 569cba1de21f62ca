"""The process that owns one model: `python -m paddock.worker FD`, started by the fleet with one end of a socketpair."""
