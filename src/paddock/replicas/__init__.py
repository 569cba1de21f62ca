"""Many replicas behind one name."""
