"""The process that owns one model: `python -m paddock.worker CONNECTION TURNS`, started by the fleet."""
