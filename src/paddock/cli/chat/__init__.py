"""The client side of the command line: `paddock run`, `paddock ps` and `paddock stop`."""
