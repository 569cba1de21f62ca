"""A request's prompt → token ids, refused in words when it cannot fit; and what its reply will look like."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

from paddock.engine import Vocab
from paddock.errors import ContextLengthExceeded, InvalidRequest
from paddock.text import Chat, Format, reply_constraint
from paddock.types import (
    ChatPrompt,
    Constraint,
    GenerateRequest,
    InfillPrompt,
    InfillTokens,
    MixedPrompt,
    ModelInfo,
    Prompt,
    TextPrompt,
    TokenPrompt,
    Tool,
)


@dataclass(frozen=True, slots=True)
class Reply:
    """How a reply is to be read that is more than words."""

    format: Format
    tools: tuple[Tool, ...]
    reply_prefix: str
    split_reasoning: bool
    shown: frozenset[int]
    """Control tokens that are part of the format, and therefore of the text."""
    thinking_budget: int | None = None
    thought_end: tuple[int, ...] = ()
    """The tokens that bring a thought to its end."""
    bare_calls: bool = True
    """A reply that is the JSON object of a call is one. Not so where content was asked for that may look like it."""


@dataclass(frozen=True, slots=True)
class Read:
    """A prompt that was understood."""

    tokens: list[int]
    constraint: Constraint | None = None
    is_optional: bool = False
    """The constraint only guards a call that the model need not make: where it cannot be enforced the model is free."""
    reply: Reply | None = None


class _Spelling:
    """Implements `Spelling` for a vocabulary."""

    def __init__(self, vocab: Vocab, n_vocab: int) -> None:
        self._vocab = vocab
        self._n_vocab = n_vocab

    def literal(self, marker: str) -> str:
        """Texts as they are, control tokens by number. One that ends an answer is left to the answer's end."""
        parts: list[str] = []
        for token in self.control_tokens(marker):
            name = self._vocab.name(token).decode("utf-8", "replace")
            before, _, marker = marker.partition(name)
            parts.append(_quoted(before))
            if token in self._vocab.end_tokens:
                return " ".join(filter(None, parts))
            parts.append(f"<[{token}]>")
        return " ".join(filter(None, (*parts, _quoted(marker))))

    def controls_except(self, marker: str) -> str:
        used = frozenset(self.control_tokens(marker))
        others = [token for token in self._controls if token not in used]
        return f"<[{','.join(map(str, others))}]>" if others else ""

    def control_tokens(self, text: str) -> list[int]:
        """Those that a text has in it by name, in their order."""
        tokens = self._vocab.tokenize(text, add_special=False, parse_special=True)
        return [
            token
            for token in tokens
            if not self._vocab.piece(token) and self._vocab.name(token).decode("utf-8", "replace") in text
        ]

    @cached_property
    def _controls(self) -> list[int]:
        tokens = range(self._n_vocab)
        return [token for token in tokens if not self._vocab.piece(token) and token not in self._vocab.end_tokens]


class PromptReader:
    """Renders and tokenises. Holds no state that changes, so it may run beside the engine."""

    def __init__(self, vocab: Vocab, info: ModelInfo) -> None:
        self._vocab = vocab
        self._n_ctx = info.n_ctx
        self._n_vocab = info.n_vocab
        self._n_slots = info.n_slots
        self._spelling = _Spelling(vocab, info.n_vocab)
        self._chat = Chat(vocab.chat_template, bos=vocab.bos, eos=vocab.eos)

    def read(self, request: GenerateRequest) -> Read:
        """The prompt's tokens and what follows from it for the answer.

        Raises `InvalidRequest` for anything that this model cannot do.
        """
        if request.id_slot is not None and request.id_slot >= self._n_slots:
            raise InvalidRequest(f"there are {self._n_slots} slots, from 0 to {self._n_slots - 1}", param="id_slot")
        if any(token >= self._n_vocab for token, _ in request.sampling.logit_bias):
            raise InvalidRequest(f"token ids must lie in 0..{self._n_vocab - 1}", param="logit_bias")
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            return self._read_chat(prompt, request.constraint)
        return Read(self._checked(prompt, self._tokens(prompt)), request.constraint)

    def _checked(self, prompt: Prompt, tokens: list[int]) -> list[int]:
        if not tokens:
            raise InvalidRequest("the prompt is empty", param=_param(prompt))
        # One place must be left for the first token of the answer.
        if len(tokens) >= self._n_ctx:
            raise self._too_long(prompt, f"{len(tokens)} tokens")
        return tokens

    def _read_chat(self, prompt: ChatPrompt, body: Constraint | None) -> Read:
        rendered = self._chat.render(prompt)
        tokens = self._checked(prompt, self.rendered_tokens(prompt, rendered.text))
        format = self._chat.format
        markers = format.markers + (format.calls.markers if prompt.tools else ())
        shown = frozenset(self._spelling.control_tokens("".join(markers)))
        reply = None
        if prompt.tools or (format.reasoning is not None and prompt.split_reasoning):
            reply = Reply(
                format,
                prompt.tools,
                rendered.reply_prefix if prompt.split_reasoning else "",
                prompt.split_reasoning,
                shown,
                prompt.thinking_budget if format.reasoning is not None else None,
                tuple(self._thought_end(format)),
                bare_calls=body is None,
            )
        is_optional = body is None and not prompt.must_call and not any(tool.strict for tool in prompt.tools)
        try:
            constraint = reply_constraint(
                format,
                prompt,
                self._spelling,
                body=body,
                reasoning=rendered.reasoning,
                reply_prefix=rendered.reply_prefix,
            )
        except InvalidRequest:
            if not is_optional:
                raise
            constraint = None
        return Read(tokens, constraint, is_optional, reply)

    def _thought_end(self, format: Format) -> list[int]:
        if format.reasoning is None:
            return []
        return self._vocab.tokenize(format.reasoning.closing, add_special=False, parse_special=True)

    def rendered_tokens(self, prompt: Prompt, text: str) -> list[int]:
        """The tokens of what a template has made of the prompt."""
        self._refuse_hopeless(prompt, text)
        # The template may have written the beginning-of-text token itself; two of them spoil the answer.
        bos = self._vocab.bos
        written = bool(bos) and text.startswith(bos)
        return self._vocab.tokenize(text, add_special=not written, parse_special=True)

    def _tokens(self, prompt: TextPrompt | TokenPrompt | MixedPrompt | InfillPrompt) -> list[int]:
        match prompt:
            case TokenPrompt(tokens):
                return self._known(tokens)
            case MixedPrompt(parts):
                self._refuse_hopeless(prompt, "".join(part for part in parts if isinstance(part, str)))
                return self._mixed(parts)
            case InfillPrompt():
                self._refuse_hopeless(
                    prompt, "".join((*(text for _, text in prompt.extra), prompt.prefix, prompt.suffix))
                )
                return self._infill(prompt)
            case TextPrompt(text):
                self._refuse_hopeless(prompt, text)
                return self._vocab.tokenize(text, add_special=True, parse_special=True)

    def render(self, prompt: ChatPrompt) -> str:
        return self._chat.render(prompt).text

    def _known(self, tokens: list[int]) -> list[int]:
        if not all(0 <= token < self._n_vocab for token in tokens):
            raise InvalidRequest(f"token ids must lie in 0..{self._n_vocab - 1}", param="prompt")
        return tokens

    def _mixed(self, parts: list[str | int]) -> list[int]:
        tokens: list[int] = []
        for index, part in enumerate(parts):
            if isinstance(part, int):
                tokens += self._known([part])
            else:
                tokens += self._vocab.tokenize(part, add_special=index == 0, parse_special=True)
        return tokens

    def _infill(self, prompt: InfillPrompt) -> list[int]:
        marks = self._vocab.infill
        if marks is None:
            reason = "this model was not made to fill gaps: it has no tokens for that"
            raise InvalidRequest(reason, param=prompt.params[1])
        tokens = self._vocab.tokenize("", add_special=True, parse_special=False)
        if prompt.extra:
            tokens += self._files(prompt.extra, marks)
        tokens += [marks.prefix, *self._plain(prompt.prefix), marks.suffix, *self._plain(prompt.suffix), marks.middle]
        return tokens

    def _files(self, files: list[tuple[str, str]], marks: InfillTokens) -> list[int]:
        """Other files, as a model saw them that was shown whole repositories; otherwise one after another."""
        tokens = [] if marks.repository is None else [marks.repository, *self._plain("myproject\n")]
        for name, text in files:
            if marks.file is None:
                tokens += self._plain(f"\n\n--- snippet ---\n\n{text}")
            else:
                tokens += [marks.file, *self._plain(f"{name}\n"), *self._plain(text)]
        if marks.file is not None:
            tokens += [marks.file, *self._plain("filename\n")]
        return tokens

    def _plain(self, text: str) -> list[int]:
        return self._vocab.tokenize(text, add_special=False, parse_special=False)

    def _refuse_hopeless(self, prompt: Prompt, text: str) -> None:
        """Tokenising ten megabytes takes seconds that others would wait for: a lower bound settles it at once."""
        size = len(text.encode("utf-8", "surrogatepass"))
        if size < self._n_ctx:
            return  # and the longest piece, which takes a while to find, need not be known
        at_least = size // self._vocab.longest_piece
        if at_least >= self._n_ctx:
            raise self._too_long(prompt, f"at least {at_least} tokens")

    def _too_long(self, prompt: Prompt, size: str) -> ContextLengthExceeded:
        """In words of OpenAI's and Anthropic's: clients look for them in the message rather than at the code."""
        return ContextLengthExceeded(
            f"the prompt is too long: it has {size}, but this model's maximum context length is {self._n_ctx} tokens, "
            "and the answer needs one of them at least",
            param=_param(prompt),
        )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _param(prompt: Prompt) -> str:
    match prompt:
        case ChatPrompt():
            return "messages"
        case InfillPrompt():
            return prompt.params[0]
        case _:
            return "prompt"
