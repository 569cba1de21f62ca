"""Do two replicas give the same bytes, cold or warm, alone or under load?  `paddock lab determinism --help`"""
