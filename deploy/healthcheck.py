"""Exit status 0 if the server in this container is healthy. Standard library only; no curl in the image.

With --alive any answer will do: 503 says that the only model is being loaded, which is no reason to be restarted. Where
it listens is told by the variables that tell the server.
"""

from __future__ import annotations

import os
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

HOST, WAIT = "127.0.0.1", 5


def main() -> None:
    port = int(os.environ.get("PADDOCK_SERVER__PORT", "8080"))
    connection = HTTPConnection(HOST, port, timeout=WAIT)
    if "PADDOCK_SERVER__SSL_CERT_FILE" in os.environ:
        itself = ssl.create_default_context()
        itself.check_hostname, itself.verify_mode = False, ssl.CERT_NONE  # its certificate is for another name
        connection = HTTPSConnection(HOST, port, timeout=WAIT, context=itself)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        sys.exit(f"/health does not answer: {error}")
    if status != 200 and "--alive" not in sys.argv:
        sys.exit(f"/health answers {status}")


if __name__ == "__main__":
    main()
