"""Logging never waits for the reader of the log, and lost lines are counted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import httpx
from hypothesis import given
from hypothesis import strategies as st

from paddock.log_writer import LogWriter
from tests.server import chat_body, wait_for
from tests.tiers import full


def _count(dropped: int) -> bytes:
    return b"%d dropped\n" % dropped


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=50))
def test_lines_that_fit_are_written_in_order(lines: list[bytes]) -> None:
    reading, writing = os.pipe()
    writer = LogWriter(writing, _count)
    for line in lines:
        writer.write(line)
    writer.flush(60)
    os.close(writing)
    with os.fdopen(reading, "rb") as read:
        assert read.read() == b"".join(lines)
    assert writer.dropped == 0


def test_unread_lines_are_dropped_and_counted() -> None:
    reading, writing = os.pipe()
    writer = LogWriter(writing, _count, most_bytes=100_000)
    line = b"x" * 999 + b"\n"
    for _ in range(1000):
        writer.write(line)
    assert writer.dropped > 500
    with os.fdopen(reading, "rb") as read:
        kept, reported = 0, 0
        while kept + reported < 1000:
            text = read.readline()
            if text == line:
                kept += 1
            else:
                reported += int(text.removesuffix(b" dropped\n"))
        assert reported == writer.dropped
        writer.write(b"later\n")
        assert read.readline() == b"later\n"
    os.close(writing)


def test_a_broken_pipe_is_ignored() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LogWriter(writing, _count)
    for _ in range(10):
        writer.write(b"x\n")
        writer.flush(60)
    os.close(writing)


@full
def test_a_server_whose_log_is_not_read_keeps_serving() -> None:
    """Each request logs its prompt, ten megabytes in all; the pipe takes 64 KiB."""
    command = [sys.executable, "-m", "paddock", "serve", "-m", "fake:", "--port", "0", "--log-prompts"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None and server.stderr is not None
            url = re.search(rb"on (http://\S+)", server.stdout.readline())
            assert url is not None
            with httpx.Client(base_url=url[1].decode(), timeout=200) as client:
                body = chat_body("say: " + "x" * 90_000)
                for _ in range(100):
                    client.post("/v1/chat/completions", json=body)  # too long for the model, but logged

                def dropped() -> int:
                    found = re.search(r"^paddock_log_lines_dropped_total (\S+)$", client.get("/metrics").text, re.M)
                    assert found is not None
                    return int(float(found[1]))

                wait_for(dropped, 20, "lines to be dropped")
                count = dropped()
            # Now the log is read: the kept lines, and the number of dropped ones.
            for line in server.stderr:
                if b"log lines were dropped" in line:
                    assert f"dropped={count}".encode() in line
                    break
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=100)
    assert server.returncode == 0


def test_a_server_whose_log_is_not_read_can_be_stopped() -> None:
    command = [sys.executable, "-m", "paddock", "serve", "-m", "fake:", "--port", "0", "-v"]
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:  # the pipe is full before it starts
        while os.write(writing, b"x" * 4096):
            pass
    except BlockingIOError:
        os.set_blocking(writing, True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing) as server:
        assert server.stdout is not None
        assert b"Serving" in server.stdout.readline()
        server.send_signal(signal.SIGTERM)
        assert server.wait(100) == 0
    os.close(writing)
    os.close(reading)
