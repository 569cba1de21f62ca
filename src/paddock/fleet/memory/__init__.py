"""Memory: what the machine has, what models need, and how it is divided."""
