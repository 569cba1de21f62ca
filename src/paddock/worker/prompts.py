"""Renders and tokenises prompts, refuses those that do not fit, and derives the format of the reply."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from paddock.engine import MediaReader, Vocab
from paddock.errors import ContextLengthExceeded, InvalidRequest, NotSupported
from paddock.scheduling.radix_tree import common_prefix
from paddock.text import Chat, Format, reply_constraint, system_end
from paddock.types import (
    BUILTIN_TEMPLATES,
    DEFAULT_TEMPLATE,
    ChatPrompt,
    Constraint,
    GenerateRequest,
    InfillPrompt,
    InfillTokens,
    MediaPrompt,
    MediaSpan,
    MixedPrompt,
    ModelInfo,
    Prompt,
    TextPrompt,
    TokenPrompt,
    Tool,
)
from paddock.worker.media_files import check_media, read_media
from paddock.worker.tokens import check_tokens, joined_text, prompt_parts, tokenize_parts

_MARKER = "<__media__>"
_SYSTEM_TEXTS = 4
"""How many system texts are kept with their tokens."""
_TEMPLATES = 8
"""How many templates of requests are kept compiled."""


@dataclass(frozen=True, slots=True)
class Reply:
    """How to parse a reply with reasoning or tool calls."""

    format: Format
    tools: tuple[Tool, ...]
    reply_prefix: str
    split_reasoning: bool
    shown: frozenset[int]
    """Control tokens that are part of the format and must appear in the text."""
    thinking_budget: int | None = None
    thought_end: tuple[int, ...] = ()
    """The tokens that end the reasoning."""
    bare_calls: bool = True
    """Whether a reply that is a JSON object without a marker may be a call. Not if the content is constrained."""
    is_parsed: bool = True
    """If false, the text is passed on as it is. Only the budget of the reasoning is counted."""


@dataclass(frozen=True, slots=True)
class Read:
    """A tokenised prompt, and what it implies for the reply."""

    tokens: list[int]
    constraint: Constraint | None = None
    is_optional: bool = False
    """The constraint is only for calls that the model need not make. If it cannot be enforced, it is dropped."""
    reply: Reply | None = None
    text: str | None = None
    """The rendered prompt, unless it has token ids."""
    system_size: int = 0
    """How many tokens its system messages have, if the cache wants to know. Later prompts may begin with them too."""
    media: tuple[MediaSpan, ...] = ()
    """Its images and sound."""


class _Spelling:
    """Implements `Spelling` for a vocabulary."""

    def __init__(self, vocab: Vocab, n_vocab: int) -> None:
        self._vocab = vocab
        self._n_vocab = n_vocab

    def literal(self, marker: str) -> str:
        """Quotes text and writes control tokens as numbers, up to a token that ends the answer."""
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
        """The control tokens whose names are in the text, in order."""
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
    """Immutable, so that any thread may use it while the engine computes."""

    def __init__(self, vocab: Vocab, info: ModelInfo, *, jinja: bool = True, media: MediaReader | None = None) -> None:
        """`jinja`: render the chat template with Jinja, unless it is the name of a built-in one. `media`: reads images
        and sound. None: the model reads text only.
        """
        self._media = media
        self._vocab = vocab
        self.n_ctx = info.n_ctx
        self._n_vocab = info.n_vocab
        self._n_slots = info.n_slots
        self._spelling = _Spelling(vocab, info.n_vocab)
        source = None if vocab.chat_template == DEFAULT_TEMPLATE else vocab.chat_template
        # Elsewhere a prefix is reused up to any token.
        self._has_checkpoints = info.reuse == "checkpoint"
        self._system_tokens = lru_cache(_SYSTEM_TEXTS)(lambda text: self._rendered_tokens(text))
        is_builtin = not jinja or source in BUILTIN_TEMPLATES
        self._chat = Chat(source, bos=vocab.bos, eos=vocab.eos, builtin=vocab.render_builtin if is_builtin else None)
        self._other_chats = lru_cache(_TEMPLATES)(lambda template: Chat(template, bos=vocab.bos, eos=vocab.eos))

    def read(self, request: GenerateRequest) -> Read:
        """Raises `InvalidRequest` for anything that this model cannot do."""
        if request.id_slot is not None and request.id_slot >= self._n_slots:
            message = f"id_slot must be 0 to {self._n_slots - 1}: this model has {self._n_slots} slots"
            raise InvalidRequest(message, param="id_slot")
        biased = (token for token, _ in request.sampling.logit_bias if isinstance(token, int))
        check_tokens(biased, self._n_vocab, "logit_bias")
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            return self._read_chat(prompt, request.constraint)
        if isinstance(prompt, MediaPrompt):
            return self._read_with_media(prompt, request.constraint)
        text = prompt.text if isinstance(prompt, TextPrompt) else None
        return Read(self._checked(prompt, self._tokens(prompt)), request.constraint, text=text)

    def _read_with_media(self, prompt: MediaPrompt, constraint: Constraint | None) -> Read:
        text = check_media(prompt.media, self._media).join(prompt.texts)
        assert self._media is not None, "checked"
        self._check_size(prompt, text)
        read = read_media(prompt.media, text, self._media, add_special=True)
        return Read(self._checked(prompt, read.tokens), constraint, media=read.spans)

    def _checked(self, prompt: Prompt, tokens: list[int]) -> list[int]:
        if not tokens:
            raise InvalidRequest("the prompt is empty", param=_param(prompt))
        # The first token of the answer needs a cell.
        if len(tokens) >= self.n_ctx:
            raise self._too_long(prompt, f"{len(tokens)} tokens", len(tokens))
        return tokens

    def _read_chat(self, prompt: ChatPrompt, body: Constraint | None) -> Read:
        chat = self._chat_of(prompt)
        rendered = chat.render(self._marked(prompt))
        tokens, media = self._chat_tokens(prompt, rendered.text)
        format = chat.format
        markers = format.markers + (format.call_markers if prompt.tools else ())
        shown = frozenset(self._spelling.control_tokens("".join(markers)))
        if not prompt.parse_reply:
            prompt = msgspec.structs.replace(prompt, tools=(), split_reasoning=False)
        budget = prompt.thinking_budget if format.reasoning is not None else None
        is_parsed = bool(prompt.tools) or (format.reasoning is not None and prompt.split_reasoning)
        reply = None
        if is_parsed or budget is not None or not prompt.parse_reply:
            reply = Reply(
                format,
                prompt.tools,
                rendered.reply_prefix,
                prompt.split_reasoning,
                shown,
                budget,
                tuple(self._thought_end(format, prompt.budget_message)),
                bare_calls=body is None,
                is_parsed=is_parsed,
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
        system_size = self._system_size(prompt, rendered.text, tokens)
        text = None if media else rendered.text
        return Read(tokens, constraint, is_optional, reply, text, system_size, media)

    def count(self, prompt: ChatPrompt) -> int:
        """How many tokens a conversation has, also if the context is too short for it: clients ask before they send."""
        return len(self._all_tokens(prompt, self._chat_of(prompt).render(self._marked(prompt)).text)[0])

    def _marked(self, prompt: ChatPrompt) -> ChatPrompt:
        """The prompt with a marker in the place of each file."""
        if not prompt.media:
            return prompt
        marker = check_media(prompt.media, self._media)
        return msgspec.structs.replace(prompt, messages=[_marked(message, marker) for message in prompt.messages])

    def _chat_tokens(self, prompt: ChatPrompt, text: str) -> tuple[list[int], tuple[MediaSpan, ...]]:
        self._check_size(prompt, text)
        tokens, media = self._all_tokens(prompt, text)
        return self._checked(prompt, tokens), media

    def _all_tokens(self, prompt: ChatPrompt, text: str) -> tuple[list[int], tuple[MediaSpan, ...]]:
        if not prompt.media or self._media is None:
            return self._rendered_tokens(text), ()
        read = read_media(prompt.media, text, self._media, add_special=not self._has_bos(text))
        return read.tokens, read.spans

    def _system_size(self, prompt: ChatPrompt, text: str, tokens: list[int]) -> int:
        end = system_end(text, prompt.messages) if self._has_checkpoints else 0
        # Without the last token if it is another one before the text that follows.
        return common_prefix(self._system_tokens(text[:end]), tokens) if end else 0

    def _thought_end(self, format: Format, message: str) -> list[int]:
        """The tokens that end the reasoning: a message and the marker."""
        if format.reasoning is None:
            return []
        texts = [message, format.reasoning.closing] if message else [format.reasoning.closing]
        return [token for text in texts for token in self._vocab.tokenize(text, add_special=False, parse_special=True)]

    def _rendered_tokens(self, text: str) -> list[int]:
        return self._vocab.tokenize(text, add_special=not self._has_bos(text), parse_special=True)

    def _has_bos(self, text: str) -> bool:
        """Whether the template has written the BOS token itself. Two of them make answers worse."""
        return bool(self._vocab.bos) and text.startswith(self._vocab.bos)

    def _tokens(self, prompt: TextPrompt | TokenPrompt | MixedPrompt | InfillPrompt) -> list[int]:
        if isinstance(prompt, InfillPrompt):
            self._check_size(prompt, "".join((*(text for _, text in prompt.extra), prompt.prefix, prompt.suffix)))
            return self._infill(prompt)
        parts = prompt_parts(prompt)
        self._check_size(prompt, joined_text(parts))
        return tokenize_parts(self._vocab, self._n_vocab, parts, "prompt")

    def render(self, prompt: ChatPrompt) -> str:
        return self._chat_of(prompt).render(_named(prompt)).text

    def _chat_of(self, prompt: ChatPrompt) -> Chat:
        return self._other_chats(prompt.template) if prompt.template else self._chat

    def _infill(self, prompt: InfillPrompt) -> list[int]:
        marks = self._vocab.infill
        if marks is None:
            field = prompt.params[1]
            if field == "suffix":  # OpenAI's clients repeat a request that gets a 501
                raise InvalidRequest("suffix is not supported by this model: it has no infill tokens", param=field)
            raise NotSupported("Infill is not supported by this model: it has no infill tokens", param=field)
        tokens = self._vocab.tokenize("", add_special=True, parse_special=False)
        if prompt.extra:
            tokens += self._files(prompt.extra, marks)
        before, after = [marks.prefix, *self._plain(prompt.prefix)], [marks.suffix, *self._plain(prompt.suffix)]
        return [*tokens, *(after + before if prompt.suffix_first else before + after), marks.middle]

    def _files(self, files: list[tuple[str, str]], marks: InfillTokens) -> list[int]:
        """Other files, in the format of repository-level training if the model has tokens for it."""
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

    def _check_size(self, prompt: Prompt, text: str) -> None:
        """Refuse a text by a lower bound of its tokens: tokenising ten megabytes would delay others by seconds."""
        size = len(text.encode("utf-8", "surrogatepass"))
        if size < self.n_ctx:
            return  # without the longest piece, which takes a while to compute
        at_least = size // self._vocab.longest_piece
        if at_least >= self.n_ctx:
            raise self._too_long(prompt, f"at least {at_least} tokens", at_least)

    def _too_long(self, prompt: Prompt, size: str, tokens: int) -> ContextLengthExceeded:
        """With the words of OpenAI, Anthropic and llama-server, because clients search the message for them."""
        return ContextLengthExceeded(
            f"the prompt is too long: it has {size} and exceeds the available context size; this model's maximum "
            f"context length is {self.n_ctx} tokens, and the answer needs at least one of them",
            param=_param(prompt),
            numbers={"n_prompt_tokens": tokens, "n_ctx": self.n_ctx},
        )


def _marked(message: dict[str, Any], marker: str) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return message | {"content": [part | {"text": marker} if part["type"] == "media" else part for part in content]}


def _named(prompt: ChatPrompt) -> ChatPrompt:
    """The prompt with llama.cpp's usual marker in the place of each file, for display."""
    if not prompt.media:
        return prompt
    return msgspec.structs.replace(prompt, messages=[_marked(message, _MARKER) for message in prompt.messages])


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
