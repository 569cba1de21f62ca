"""The process boundary: typed messages (`messages.py`) and the frames that carry them (`frames.py`)."""
