"""What is a known prefix worth, on this server and on others?  `paddock lab prefix-cache --help`"""
