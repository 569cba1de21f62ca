"""The files of libllama on this machine: where they are, which of them can be used here, and what they are.

Nothing is loaded here, so both sides use it. `fleet/process/native.py` loads a library in a process of its own and
asks it about itself; `engine/libllama` is the binding.
"""

from paddock.libraries.builds import (
    IDENTITY,
    PINNED,
    Build,
    Identity,
    Source,
    cache_folder,
    list_builds,
    usable_builds,
)
from paddock.libraries.cache_file import read_cached, write_cached
from paddock.libraries.cpu import Cpu, this_cpu
from paddock.libraries.file_check import file_problem
from paddock.libraries.identity import build_id, compiler, sha256_by_file
from paddock.libraries.search import (
    BUILT,
    PACKAGE,
    PREBUILT,
    VARIABLE,
    VARIABLES,
    Found,
    candidates,
    find_library,
    install_hint,
    library_name,
    readable_paths,
)
from paddock.libraries.trials import is_in_doubt, note_trial, was_tried
