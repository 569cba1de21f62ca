"""The parts of `paddock verify`."""
