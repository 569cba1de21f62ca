"""A request's prompt → token ids, refused in words when it cannot fit."""

from __future__ import annotations

from paddock.engine import Vocab
from paddock.errors import ContextLengthExceeded, InvalidRequest
from paddock.text import ChatTemplate
from paddock.types import (
    ChatPrompt,
    GenerateRequest,
    InfillPrompt,
    InfillTokens,
    MixedPrompt,
    ModelInfo,
    Prompt,
    TextPrompt,
    TokenPrompt,
)


class PromptReader:
    """Renders and tokenises. Holds no state that changes, so it may run beside the engine."""

    def __init__(self, vocab: Vocab, info: ModelInfo) -> None:
        self._vocab = vocab
        self._n_ctx = info.n_ctx
        self._n_vocab = info.n_vocab
        self._n_slots = info.n_slots
        self._template = ChatTemplate(vocab.chat_template, bos=vocab.bos, eos=vocab.eos)

    def read(self, request: GenerateRequest) -> list[int]:
        """The prompt's tokens. Raises `InvalidRequest` for anything that this model cannot do."""
        if request.id_slot is not None and request.id_slot >= self._n_slots:
            raise InvalidRequest(f"there are {self._n_slots} slots, from 0 to {self._n_slots - 1}", param="id_slot")
        if any(token >= self._n_vocab for token, _ in request.sampling.logit_bias):
            raise InvalidRequest(f"token ids must lie in 0..{self._n_vocab - 1}", param="logit_bias")
        prompt = request.prompt
        tokens = self._tokens(prompt)
        if not tokens:
            raise InvalidRequest("the prompt is empty", param=_param(prompt))
        # One place must be left for the first token of the answer.
        if len(tokens) >= self._n_ctx:
            raise self._too_long(prompt, f"{len(tokens)} tokens")
        return tokens

    def _tokens(self, prompt: Prompt) -> list[int]:
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
            case ChatPrompt():
                text = self.render(prompt)
                self._refuse_hopeless(prompt, text)
                # The template may have written the beginning-of-text token itself; two of them spoil the answer.
                bos = self._vocab.bos
                written = bool(bos) and text.startswith(bos)
                return self._vocab.tokenize(text, add_special=not written, parse_special=True)

    def render(self, prompt: ChatPrompt) -> str:
        return self._template.render(prompt.messages)

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
        at_least = len(text.encode("utf-8", "surrogatepass")) // self._vocab.longest_piece
        if at_least >= self._n_ctx:
            raise self._too_long(prompt, f"at least {at_least} tokens")

    def _too_long(self, prompt: Prompt, size: str) -> ContextLengthExceeded:
        return ContextLengthExceeded(
            f"the prompt has {size}, but the model's context holds {self._n_ctx} and the answer needs one at least",
            param=_param(prompt),
        )


def _param(prompt: Prompt) -> str:
    match prompt:
        case ChatPrompt():
            return "messages"
        case InfillPrompt():
            return prompt.params[0]
        case _:
            return "prompt"
