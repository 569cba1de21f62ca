"""How much time does a cached prefix save, on this and other servers?  `paddock lab prefix-cache --help`"""
