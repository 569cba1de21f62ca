"""Speculative decoding without a draft model: what the next tokens probably are, and when verifying them pays.

Pure decisions on token ids: no model and no clock.
"""

from paddock.scheduling.speculation.draft_price import Tile
from paddock.scheduling.speculation.speculation import Speculation

__all__ = ["Speculation", "Tile"]
