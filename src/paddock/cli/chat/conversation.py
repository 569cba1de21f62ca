"""A conversation at the terminal: its messages and parameters, and the commands that change them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

HELP = """\
/set system TEXT         Set the system message. /system TEXT is short for it.
/set NAME VALUE          Set a parameter of requests, such as temperature, seed or max_tokens.
/unset NAME              Remove a parameter.
/show                    Show the model, the system message and the parameters.
/save NAME, /load NAME   Save the conversation, or continue a saved one.
/clear                   Forget the conversation.
/model NAME              Continue with another model.
/bye                     Leave. So does Ctrl-D.
\"\"\"                      Begin and end a message of several lines.
Ctrl-C                   Stop the answer.
"""


class CommandError(Exception):
    """A command that cannot be carried out, with the reason."""


class _Saved(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[dict[str, str]]
    system: str = ""
    parameters: dict[str, Any] = {}
    model: str | None = None


@dataclass(slots=True)
class Conversation:
    model: str | None = None
    system: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The body of the next request."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        named = {"model": self.model} if self.model else {}
        return {**named, "messages": [*system, *self.messages], **self.parameters}

    def ask(self, question: str) -> None:
        self.messages.append({"role": "user", "content": question})

    def answer(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})

    def take_back(self) -> None:
        """Forget a question that was not answered."""
        self.messages.pop()

    def run(self, line: str) -> str | None:
        """Carry out a command, a line that begins with a slash. Returns what to print; None: leave."""
        name, _, rest = line[1:].strip().partition(" ")
        rest = rest.strip()
        match name:
            case "bye" | "exit" | "quit":
                return None
            case "help" | "?":
                return HELP
            case "system":
                return self._set("system", rest)
            case "set":
                key, _, value = rest.partition(" ")
                return self._set(key, value.strip())
            case "unset":
                if rest not in self.parameters:
                    raise CommandError(f"{rest!r} is not set")
                del self.parameters[rest]
                return f"Removed {rest}."
            case "show":
                return self._show()
            case "clear":
                self.messages.clear()
                return "Forgot the conversation."
            case "model":
                self.model = rest or None
                return f"Continuing with {rest or 'the default model'}."
            case "save":
                return self._save(_file(rest))
            case "load":
                return self._load(_file(rest))
        raise CommandError(f"unknown command /{name}: /help lists the commands")

    def _set(self, key: str, value: str) -> str:
        if not key or (not value and key != "system"):
            raise CommandError("use /set NAME VALUE, such as /set temperature 0.2")
        if key == "system":
            self.system = value.strip('"')
            return "Set the system message." if value else "Removed the system message."
        if key in ("messages", "model", "stream"):
            raise CommandError(f"{key} is not a parameter")
        try:
            self.parameters[key] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            self.parameters[key] = value
        return f"Set {key} to {msgspec.json.encode(self.parameters[key]).decode()}."

    def _show(self) -> str:
        shown = {"model": self.model or "(the default)", "system": self.system or "(none)", **self.parameters}
        return "\n".join(f"{key}: {value}" for key, value in shown.items()) + f"\nmessages: {len(self.messages)}"

    def _save(self, file: Path) -> str:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        saved = _Saved(self.messages, self.system, self.parameters, self.model)
        file.write_bytes(msgspec.json.format(msgspec.json.encode(saved)))
        return f"Saved {len(self.messages)} messages to {file}."

    def _load(self, file: Path) -> str:
        try:
            saved = msgspec.json.decode(file.read_bytes(), type=_Saved)
        except FileNotFoundError:
            names = sorted(other.stem for other in file.parent.glob("*.json"))
            raise CommandError(
                f"there is no conversation {file.stem!r}; saved are: {', '.join(names) or 'none'}"
            ) from None
        except msgspec.DecodeError as error:
            raise CommandError(f"{file} is not a saved conversation: {error}") from None
        self.messages, self.system, self.parameters = saved.messages, saved.system, saved.parameters
        self.model = saved.model or self.model
        return f"Loaded {len(self.messages)} messages."


def _file(name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise CommandError("a name has at most 64 letters, digits and . _ -")
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return data / "paddock" / "conversations" / f"{name}.json"
