"""The parts of `paddock batch`."""
