"""Runs two Ray nodes that listen on the loopback address only, until standard input ends.

`ray start` refuses a second node on one address, so this uses Ray's own test utilities. A line of input kills all
processes of the second node at once.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def main() -> None:
    # Else Ray replaces 127.0.0.1 by the machine's address and listens on it.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    # Ray writes the address of the newest cluster there, but does not create the folder.
    os.environ["RAY_TMPDIR"] = sys.argv[1]
    os.makedirs(os.path.join(sys.argv[1], "ray"), exist_ok=True)
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {
        "num_cpus": 2,
        "memory": 2**33,
        "object_store_memory": 100 * 2**20,
        "node_ip_address": "127.0.0.1",
    }
    head = {**node, "include_dashboard": False, "temp_dir": sys.argv[1]}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        second = cluster.add_node(**node)
        sys.stdout.write(f"address: {cluster.address}\n")
        sys.stdout.flush()
        if sys.stdin.readline():
            cluster.remove_node(second, allow_graceful=False)
            sys.stdin.read()
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
