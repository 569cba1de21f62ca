"""A thin binding of libllama: the functions and structs that Paddock uses, and nothing else.

`lib` has the functions by their names in llama.h. Importing this package loads the library and checks it. It raises
`LibraryUnusable`. Nothing else in Paddock loads libllama.
"""

from paddock.engine.libllama.loading import Library, open_library

lib = open_library()
