"""Loading and unloading: the state of each model, the policy, restarts."""
