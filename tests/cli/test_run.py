"""`paddock run`, `ps` and `stop`, with real servers; the chat on a real pseudo-terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from paddock.cli.chat.conversation import CommandError, Conversation
from paddock.cli.chat.markdown import MarkdownPrinter, split_finished
from paddock.cli.chat.printing import PlainPrinter
from paddock.config import load_settings
from tests.certificates import make_certificate
from tests.server import Server
from tests.tiers import full

_PADDOCK = (sys.executable, "-m", "paddock")
_TWO_TOKENS = ("hello", "--set", "max_tokens=2", "--set", "ignore_eos=true", "--json")


def _paddock(*arguments: str, stdin: str = "", cwd: Path, url: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"PADDOCK_URL": url} if url else {"PADDOCK_SERVER__PORT": "1"})
    return subprocess.run(
        [*_PADDOCK, *arguments], input=stdin, capture_output=True, text=True, timeout=200, cwd=cwd, env=environment
    )


# ── one question ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_question_is_answered(fake_server: Server, tmp_path: Path) -> None:
    done = _paddock(
        "run", "Say something", "--set", "max_tokens=5", "--set", "ignore_eos=true", cwd=tmp_path, url=fake_server.url
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_text_from_a_pipe_comes_before_the_question(fake_server: Server, tmp_path: Path) -> None:
    arguments = ("run", "summarise", "--json", "--set", "max_tokens=3", "--set", "ignore_eos=true")
    one = json.loads(_paddock(*arguments, cwd=tmp_path, url=fake_server.url).stdout)
    both = json.loads(_paddock(*arguments, stdin="a b c d e f", cwd=tmp_path, url=fake_server.url).stdout)
    assert both["usage"]["prompt_tokens"] > one["usage"]["prompt_tokens"]
    assert both["usage"]["completion_tokens"] == 3


def test_without_a_server_one_is_started_for_the_question(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    (tmp_path / ".env").write_text("PADDOCK_SERVER__API_KEYS=secret\n", "utf-8")  # the command knows its key
    done = _paddock("run", str(tiny_models["llama"]), *_TWO_TOKENS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["model"], answer["usage"]["completion_tokens"]) == ("llama", 2)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("nothing-like-it", "question"), "there is no model 'nothing-like-it'; there are: fake"),
        (("hello", "--set", "temperature=-1"), "temperature"),
        (("hello", "--set", "messages=1"), "messages is not a parameter"),
        (("--json",), "--json needs a question"),
        (("hello", "--url", "http://127.0.0.1:1"), "no server answers at http://127.0.0.1:1"),
    ],
)
def test_a_mistake_is_explained(fake_server: Server, tmp_path: Path, arguments: tuple[str, ...], problem: str) -> None:
    done = _paddock("run", *arguments, cwd=tmp_path, url=fake_server.url)
    assert done.returncode != 0
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


# ── the chat ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_chat_on_a_terminal(fake_server: Server, tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [*_PADDOCK, "run", "--url", fake_server.url, "--set", "max_tokens=4"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=tmp_path,
        env=os.environ | {"TERM": "dumb", "XDG_DATA_HOME": str(tmp_path)},
        start_new_session=True,
    )
    os.close(terminal)
    output = ""

    def type_line(line: str, until: str) -> None:
        """Type a line, and read until this text and then a prompt appear: what is typed too early may be lost."""
        nonlocal output
        os.write(controller, f"{line}\n".encode())
        output = ""
        while not output.partition(until)[2].endswith((">>> ", "... ")):
            output += os.read(controller, 4096).decode("utf-8", "replace")

    try:
        while ">>> " not in output:
            output += os.read(controller, 4096).decode("utf-8", "replace")
        assert "Chatting with fake." in output
        type_line("/set temprature 1", until="Set temprature to 1.")
        type_line("hello", until="the server does not know temprature")
        type_line("/unset temprature", until="temprature")
        type_line("/nonsense", until="unknown command /nonsense")
        type_line('"""two', until='"""two')
        type_line('lines"""', until='lines"""')
        type_line("/save talk", until="Saved 4 messages")
        type_line("/clear", until="Forgot the conversation.")
        type_line("/load talk", until="Loaded 4 messages.")
        os.write(controller, b"\x04")  # Ctrl-D
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(controller)
    saved = json.loads((tmp_path / "paddock" / "conversations" / "talk.json").read_text("utf-8"))
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant", "user", "assistant"]
    assert saved["messages"][2]["content"] == "two\nlines"


def test_commands_change_the_next_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    chat = Conversation()
    chat.run("/system Be brief.")
    chat.run("/set temperature 0.2")
    chat.run('/set stop ["x"]')
    chat.run("/set user me")
    chat.run("/model other")
    chat.ask("hello")
    assert chat.body() == {
        "model": "other",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
        "temperature": 0.2,
        "stop": ["x"],
        "user": "me",
    }
    chat.run("/unset temperature")
    chat.run("/set system")
    assert "temperature" not in chat.body()
    assert chat.run("/bye") is None


@pytest.mark.parametrize(
    "line", ["/set", "/set temperature", "/unset x", "/load none", "/save ../x", "/x", "/set model m"]
)
def test_a_command_that_cannot_be_carried_out_changes_nothing(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    chat = Conversation()
    with pytest.raises(CommandError):
        chat.run(line)
    assert chat == Conversation()


@given(st.lists(st.sampled_from(["word", "\n", "\n\n", "```", "~~~~", "```py\n", "- item", " "]), max_size=30))
def test_finished_blocks_and_the_rest_are_the_whole_text(parts: list[str]) -> None:
    text = pending = ""
    printed = ""
    for part in parts:
        text += part
        finished, pending = split_finished(pending + part)
        printed += finished
    assert printed + pending == text


def test_an_answer_cannot_control_the_terminal() -> None:
    out = io.StringIO()
    with MarkdownPrinter(Console(file=out, force_terminal=False, width=80)) as printer:
        printer.content("\x1b]0;title\x07 one\x1b[2J\n\ntwo\x9b2J")
    assert not set(out.getvalue()) & {"\x07", "\x1b", "\x9b"}
    assert "one" in out.getvalue() and "two" in out.getvalue()


def test_plain_text_cannot_control_the_terminal_either() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    texts = []
    for out in (Terminal(), io.StringIO()):
        with PlainPrinter(out) as printer:
            printer.content("one\x1b[2J")
        texts.append(out.getvalue())
    assert texts == ["one[2J\n", "one\x1b[2J\n"], "a pipe gets the answer as it is"


def test_the_variables_of_the_client_are_no_settings() -> None:
    environ = {"PADDOCK_URL": "http://127.0.0.1:1", "PADDOCK_API_KEY": "k"}
    assert load_settings(environ=environ, dotenv=Path("/nonexistent")) == load_settings(
        environ={}, dotenv=Path("/nonexistent")
    )


def test_a_code_block_is_not_split() -> None:
    assert split_finished("a\n\n```\nx\n\ny") == ("a\n\n", "```\nx\n\ny")
    assert split_finished("```\nx\n\ny\n```\n\nz") == ("```\nx\n\ny\n```\n\n", "z")


# ── ps and stop ──────────────────────────────────────────────────────────────────────────────────────────────────────


@full
def test_ps_shows_a_loaded_model_and_stop_unloads_it(tmp_path: Path) -> None:
    with Server("-m", "fake:", "-a", "some-model") as server:
        _paddock("run", "hello", "--set", "max_tokens=1", cwd=tmp_path, url=server.url)
        header, row = _paddock("ps", cwd=tmp_path, url=server.url).stdout.splitlines()
        assert header.split()[:3] == ["NAME", "STATE", "RUNNING"]
        assert row.split()[:3] == ["some-model", "loaded", "0"]
        assert _paddock("stop", "some-model", cwd=tmp_path, url=server.url).stdout == "Unloaded some-model.\n"
        assert len(_paddock("ps", cwd=tmp_path, url=server.url).stdout.splitlines()) == 1
        assert _paddock("stop", "some-model", cwd=tmp_path, url=server.url).stdout == "some-model is not loaded.\n"
        status = json.loads(_paddock("ps", "--json", cwd=tmp_path, url=server.url).stdout)
        assert status["models"][0]["state"] == "unloaded"


def test_ps_without_a_server_says_so(tmp_path: Path) -> None:
    done = _paddock("ps", cwd=tmp_path, url="http://127.0.0.1:1")
    assert (done.returncode, done.stderr) == (
        1,
        "Error: no server answers at http://127.0.0.1:1: start one with `paddock serve`\n",
    )


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@full
def test_a_server_with_tls_is_found_by_its_certificate(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with Server("-m", "fake:", "--ssl-cert-file", str(certificate), "--ssl-key-file", str(key)) as server:
        port = server.url.rpartition(":")[2]
        settings = f"PADDOCK_SERVER__PORT={port}\nPADDOCK_SERVER__SSL_CERT_FILE={certificate}\n"
        (tmp_path / ".env").write_text(f"{settings}PADDOCK_SERVER__SSL_KEY_FILE={key}\n", "utf-8")
        done = subprocess.run([*_PADDOCK, "run", "say: hello"], capture_output=True, text=True, cwd=tmp_path, input="")
        assert (done.returncode, done.stdout.strip()) == (0, "hello"), done.stderr
        other = _paddock("run", "hello", cwd=tmp_path.parent, url=server.url)
        assert f"the certificate of {server.url} is not trusted" in other.stderr


@full
def test_with_tls_settings_a_server_is_started_without_tls(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    certificate, key = make_certificate(tmp_path)
    (tmp_path / ".env").write_text(
        f"PADDOCK_SERVER__SSL_CERT_FILE={certificate}\nPADDOCK_SERVER__SSL_KEY_FILE={key}\n", "utf-8"
    )
    done = _paddock("run", str(tiny_models["llama"]), *_TWO_TOKENS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["usage"]["completion_tokens"] == 2
