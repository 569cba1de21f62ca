"""Write the reference pages that are generated from code, or check all documents.

`docs.py write` writes docs/reference. `docs.py check` fails for a stale page, a dead link, a path of a file that does
not exist, and a snippet that no test runs and that does not say why.
"""

from __future__ import annotations

import sys

from documents import configuration, errors, flags, links, llama_server, metrics, routes, snippets
from documents.markdown import ROOT

_PAGES = {
    "configuration": configuration.page,
    "errors": errors.page,
    "flags": flags.page,
    "llama-server": llama_server.page,
    "metrics": metrics.page,
    "routes": routes.page,
}
_FOLDER = ROOT / "docs" / "reference"


def main() -> None:
    match sys.argv[1:]:
        case ["write"]:
            for name, page in _PAGES.items():
                (_FOLDER / f"{name}.md").write_text(page(), "utf-8")
        case ["check"]:
            problems = [*_stale(), *links.problems(), *snippets.problems()]
            if problems:
                sys.exit("\n".join(problems))
        case _:
            sys.exit("docs.py write|check")


def _stale() -> list[str]:
    found = []
    for name, page in _PAGES.items():
        file = _FOLDER / f"{name}.md"
        if not file.exists() or file.read_text("utf-8") != page():
            found.append(f"docs/reference/{name}.md is stale: run `make docs`")
    return found


if __name__ == "__main__":
    main()
