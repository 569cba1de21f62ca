"""One request in the fleet: its generation, its retries and its record."""
