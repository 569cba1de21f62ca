import faulthandler
import importlib
import signal
import socket
import sys
import threading

from paddock.worker.process import Worker


def main() -> None:
    # Ctrl-C reaches the whole foreground group; when to end is the gateway's decision, told over the wire.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The gateway logs the last lines of a crash. Only the thread that crashed: idle ones would push its stack out.
    faulthandler.enable(all_threads=False)
    # A short interval lets the engine thread have the GIL back soon after a decode, whatever the I/O thread is doing.
    sys.setswitchinterval(0.0005)
    # Grammars are compiled by recursion, in native code that does not notice the end of its stack. Unused it is free.
    threading.stack_size(64 << 20)
    connection, cpu_lock, *ahead = sys.argv[1:]
    if ahead:  # of any model: what a real one will need is fetched now
        importlib.import_module("paddock.engine.llama")
    Worker(socket.socket(fileno=int(connection)), int(cpu_lock)).run()


if __name__ == "__main__":
    main()
