"""Servers under test: started here and ended, or at URLs, where they should be running already."""

from __future__ import annotations

import socket
import subprocess
import sys

import psutil
import pytest
from click.testing import CliRunner

from paddock.cli import main
from paddock_lab.servers import Entrant, StartFailed, entrants, running


@pytest.fixture
def dead_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_url_without_a_server_is_reported_with_reason_and_timeout(
    dead_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StartFailed, match=rf"old did not answer {dead_url}/health within 0\.2 s: .*refused"):
        with running(Entrant("old", dead_url), {}, 0.2):
            pass
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, "the same reason is printed once"
    assert lines[0].startswith(f"old does not answer {dead_url}/health: ")
    assert "refused" in lines[0] and lines[0].endswith("trying for 0 s more (--start-timeout)")


def test_an_unknown_host_is_not_retried() -> None:
    with pytest.raises(StartFailed, match=r"cannot be reached at http://no-such-host\.invalid"):
        with running(Entrant("old", "http://no-such-host.invalid"), {}, 1e9):
            pass


@pytest.mark.parametrize("command", [["bench"], ["lab", "prefix-cache"], ["lab", "determinism"]])
def test_every_command_prints_why_it_waits(command: list[str], dead_url: str, tmp_path: object) -> None:
    two = ["--server", f"a={dead_url}", "--server", f"b={dead_url}"]
    result = CliRunner().invoke(main, [*command, *two, "--start-timeout", "0.1", "--out", f"{tmp_path}/out"])
    assert result.exit_code == 1, result.output
    assert f"a does not answer {dead_url}/health" in result.output


def test_servers_are_named_and_their_commands_filled_in() -> None:
    named, unnamed, url = entrants(("np8=run -m {model} --x '{\"a\": 1}'", "run --y=2", "http://h:1"), "peer")
    assert (named.name, unnamed.name, url.name) == ("np8", "peer2", "peer3")
    assert named.command({"model": "a b.gguf"}) == ["run", "-m", "a b.gguf", "--x", '{"a": 1}']
    assert (named.is_url, url.is_url) == (False, True)


def test_a_measurement_that_is_terminated_leaves_no_server() -> None:
    measurement = (
        "import time\n"
        "from paddock_lab.servers import Entrant, running\n"
        "with running(Entrant('one', '{python} -m paddock serve -m fake: --port {port}'), {}, 60) as server:\n"
        "    print(server.process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", measurement], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = psutil.Process(int(process.stdout.readline()))
        process.terminate()
        process.wait(30)
    assert not server.is_running()
