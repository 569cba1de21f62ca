"""Which replica should get a request?  A simulation: `paddock lab routing --help`"""
