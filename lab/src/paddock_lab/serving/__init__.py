"""How does Paddock serve many at once, next to its peers in the same run?  `python -m paddock_lab.serving --help`"""
