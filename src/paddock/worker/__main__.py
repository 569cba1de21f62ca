import faulthandler
import importlib
import signal
import socket
import sys
import threading

from paddock.errors import LibraryUnusable
from paddock.worker.process import Worker


def main() -> None:
    # Ctrl-C reaches the whole process group, but the gateway decides when a worker exits.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The gateway logs the last lines of a crash, so only the stack of the crashed thread is written.
    faulthandler.enable(all_threads=False)
    # A short interval: the engine thread gets the GIL back soon after a decode.
    sys.setswitchinterval(0.0005)
    # Native code compiles grammars by recursion and does not check its stack. Unused stack takes no memory.
    threading.stack_size(64 << 20)
    connection, cpu_lock, *preload = sys.argv[1:]
    if preload:  # a spare worker imports the engine before it gets a model
        try:
            importlib.import_module("paddock.engine.llama")
        except LibraryUnusable:
            pass  # the first load reports it
    Worker(socket.socket(fileno=int(connection)), int(cpu_lock)).run()


if __name__ == "__main__":
    main()
