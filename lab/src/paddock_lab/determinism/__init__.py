"""Do two replicas give the same bytes, cold or warm, alone or among others?  `paddock lab determinism --help`"""
