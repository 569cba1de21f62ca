"""Tiny models with random weights: one for each kind of memory that libllama has for a sequence, and some embedding
models.

Their text is random, but it is reproducible and depends on all tokens before it. So a test can compare the text with
and without the cache, with the real library and without a download. A file is written in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

WINDOW = 32
"""The tokens to which the windowed layers of `sliding_window` attend."""

_CONTEXT = 2048
_EMBEDDING = 64
_FEED_FORWARD = 128
_HEAD = 32  # one block of every quantised cache type

_INNER = 2 * _EMBEDDING  # libllama supports no other ratio
_STATE, _KERNEL, _RANK = 16, 4, 4
_ADAPTER_RANK = 4

_LETTERS = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,?!"
_PIECES = ["th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "es", "or", "te", "of", "ed", "is", "it", "ng"]
_WORDS = ["▁t", "▁th", "▁the", "▁a", "▁an", "▁and", "▁i", "▁in", "▁is", "▁o", "▁of", "▁on", "ing"]
_GENERATED = [*_LETTERS, *_PIECES, *_WORDS]
_SPECIAL = ["<unk>", "<s>", "</s>"]
_ENCODER_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_CALLER = ["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"]
_CALLER_TEMPLATE = (
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}{{ '[THINK]' if enable_thinking else '' }}{% endif %}"
    "{# [/THINK] #}"
)
_INFILL = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
_REPOSITORY = ["<|repo_name|>", "<|file_sep|>"]


def llama(path: Path, *, layers: int = 3, sampling: Mapping[str, float | str] | None = None) -> None:
    """Plain attention: the keys and values of each token are kept, so any prefix can be cut, copied and restored. With
    another number of layers it generates other text from the same vocabulary. `sampling`: its sampling defaults.
    """
    file = _File(path, "llama", layers=layers)
    file.describe_sampling(sampling or {})
    file.describe_attention(heads=4, kv_heads=2)
    for layer in range(layers):
        file.add_attention(layer, heads=4, kv_heads=2)
        file.add_feed_forward(layer)
    file.write()


def infill(path: Path, *, files: bool = False) -> None:
    """A llama with special tokens for infill, and with `files` also those for several files of a repository."""
    file = _File(path, "llama", layers=1, more_special=[*_INFILL, *(_REPOSITORY if files else [])])
    file.describe_attention(heads=4, kv_heads=2)
    file.add_attention(0, heads=4, kv_heads=2)
    file.add_feed_forward(0)
    file.write()


def caller(path: Path) -> None:
    """A llama with a chat template for tool calls and reasoning, whose markers are control tokens."""
    file = _File(path, "llama", layers=1, more_special=_CALLER, chat_template=_CALLER_TEMPLATE)
    file.describe_attention(heads=4, kv_heads=2)
    file.add_attention(0, heads=4, kv_heads=2)
    file.add_feed_forward(0)
    file.write()


def experts(path: Path, *, layers: int = 3) -> None:
    """A mixture of experts: each token uses two of four feed-forward networks in each layer."""
    file = _File(path, "llama", layers=layers)
    file.describe_attention(heads=4, kv_heads=2)
    file.describe_experts(count=4, used=2)
    for layer in range(layers):
        file.add_attention(layer, heads=4, kv_heads=2)
        file.add_experts(layer, count=4)
    file.write()


def latent(path: Path) -> None:
    """Latent attention (MLA): keys and values are computed from one small vector per token, stored as the key."""
    file = _File(path, "deepseek2", layers=3)
    file.describe_latent_attention(heads=4)
    for layer in range(3):
        file.add_latent_attention(layer, heads=4)
        file.add_feed_forward(layer)
    file.write()


def positions(path: Path) -> None:
    """A vision model (M-RoPE): a token has several positions, which libllama keeps in its cell."""
    file = _File(path, "qwen2vl", layers=3)
    file.describe_attention(heads=2, kv_heads=1)
    file.describe_positions()
    for layer in range(3):
        file.add_attention(layer, heads=2, kv_heads=1)
        file.add_feed_forward(layer)
    file.write()


def sliding_window(path: Path) -> None:
    """Every second layer attends to the last `WINDOW` tokens only, and libllama may remove older ones from cells."""
    file = _File(path, "gemma3", layers=4)
    file.describe_attention(heads=4, kv_heads=2)
    file.describe_window()
    for layer in range(4):
        file.add_attention(layer, heads=4, kv_heads=2)
        file.add_attention_norms(layer)
        file.add_feed_forward(layer)
        file.add_norm(f"blk.{layer}.post_ffw_norm", _EMBEDDING)
    file.write()


def recurrent(path: Path) -> None:
    """One state for the whole sequence, which each token overwrites: no earlier state can be restored from it."""
    file = _File(path, "mamba", layers=3)
    file.describe_recurrence()
    for layer in range(3):
        file.add_recurrence(layer)
    file.write()


def hybrid(path: Path) -> None:
    """Attention and recurrent layers: keys and values of each token, and one state for the whole sequence."""
    file = _File(path, "jamba", layers=3)
    file.describe_attention(heads=2, kv_heads=[0, 1, 0])
    file.describe_recurrence()
    for layer in range(3):
        if layer == 1:
            file.add_attention(layer, heads=2, kv_heads=1)
        else:
            file.add_recurrence(layer)
            file.add_recurrence_norms(layer)
        file.add_feed_forward(layer)
    file.write()


def embedding(path: Path) -> None:
    """A BERT with mean pooling: one vector for an input."""
    _bert(path, gguf.PoolingType.MEAN)


def reranking(path: Path) -> None:
    """A BERT with rank pooling: one score for a query and a document."""
    _bert(path, gguf.PoolingType.RANK)


def generative_reranking(path: Path) -> None:
    """A generative model with a rerank template."""
    file = _File(path, "llama", layers=1)
    file.describe_judgement("<s>{query} of {document}</s>")
    file.describe_attention(heads=4, kv_heads=2)
    file.add_attention(0, heads=4, kv_heads=2)
    file.add_feed_forward(0)
    file.write()


def adapter(path: Path, *, seed: int = 1, architecture: str = "llama", invocation: Sequence[int] = ()) -> None:
    """A LoRA adapter for `llama`. It changes the first two layers."""
    random = np.random.default_rng(seed)
    file = gguf.GGUFWriter(path, architecture)
    file.add_type(gguf.GGUFType.ADAPTER)
    file.add_string(gguf.Keys.Adapter.TYPE, "lora")
    file.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 2 * _ADAPTER_RANK)
    file.add_string(gguf.Keys.Adapter.LORA_TASK_NAME, f"task {seed}")
    if invocation:
        file.add_array(gguf.Keys.Adapter.ALORA_INVOCATION_TOKENS, list(invocation))
    for name, rows, columns in (
        ("blk.0.attn_q", 4 * _HEAD, _EMBEDDING),
        ("blk.0.attn_v", 2 * _HEAD, _EMBEDDING),
        ("blk.1.ffn_up", _FEED_FORWARD, _EMBEDDING),
    ):
        down = random.normal(0, 1 / np.sqrt(columns), (_ADAPTER_RANK, columns))
        up = random.normal(0, 1 / np.sqrt(_ADAPTER_RANK), (rows, _ADAPTER_RANK))
        file.add_tensor(f"{name}.weight.lora_a", down.astype(np.float32))
        file.add_tensor(f"{name}.weight.lora_b", up.astype(np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _bert(path: Path, pooling: gguf.PoolingType) -> None:
    file = _File(path, "bert", layers=2, generates=False)
    file.describe_encoder(pooling)
    file.describe_attention(heads=2, kv_heads=2)
    file.add_encoder_inputs()
    for layer in range(2):
        file.add_encoder_layer(layer)
    if pooling == gguf.PoolingType.RANK:
        file.add_classifier()
    file.write()


class _File:
    """Builds a GGUF file. The weights are random with a fixed seed, in the order of the calls."""

    def __init__(
        self,
        path: Path,
        architecture: str,
        *,
        layers: int,
        more_special: Sequence[str] = (),
        generates: bool = True,
        chat_template: str = "",
    ) -> None:
        self._random = np.random.default_rng(8)
        self._gguf = gguf.GGUFWriter(path, architecture)
        self._gguf.add_block_count(layers)
        self._gguf.add_context_length(_CONTEXT)
        self._gguf.add_embedding_length(_EMBEDDING)
        self._gguf.add_feed_forward_length(_FEED_FORWARD)
        self._gguf.add_layer_norm_rms_eps(1e-5)
        self._gguf.add_file_type(gguf.LlamaFileType.ALL_F32)
        if chat_template:
            self._gguf.add_chat_template(chat_template)
        if generates:
            self._add_vocabulary([*_SPECIAL, *more_special])
        else:
            self._add_word_pieces()

    def write(self) -> None:
        self._gguf.write_header_to_file()
        self._gguf.write_kv_data_to_file()
        self._gguf.write_tensors_to_file()
        self._gguf.close()

    def describe_attention(self, *, heads: int, kv_heads: int | list[int]) -> None:
        self._gguf.add_head_count(heads)
        self._gguf.add_head_count_kv(kv_heads)
        self._gguf.add_key_length(_HEAD)
        self._gguf.add_value_length(_HEAD)

    def describe_latent_attention(self, *, heads: int) -> None:
        self._gguf.add_head_count(heads)
        self._gguf.add_head_count_kv(1)
        self._gguf.add_rope_dimension_count(_HEAD)
        self._gguf.add_q_lora_rank(_RANK)
        self._gguf.add_kv_lora_rank(_HEAD)
        self._gguf.add_key_length(2 * _HEAD)
        self._gguf.add_value_length(_HEAD)
        self._gguf.add_key_length_mla(_HEAD + _STATE)
        self._gguf.add_value_length_mla(_STATE)
        self._gguf.add_leading_dense_block_count(3)
        self._gguf.add_expert_feed_forward_length(_FEED_FORWARD)
        self._gguf.add_expert_shared_count(1)

    def describe_positions(self) -> None:
        self._gguf.add_rope_dimension_sections([4, 6, 6, 0])

    def describe_experts(self, *, count: int, used: int) -> None:
        self._gguf.add_expert_count(count)
        self._gguf.add_expert_used_count(used)

    def describe_sampling(self, defaults: Mapping[str, float | str]) -> None:
        add = {int: self._gguf.add_int32, float: self._gguf.add_float32, str: self._gguf.add_string}
        for name, value in defaults.items():
            add[type(value)](f"general.sampling.{name}", value)  # type: ignore[operator]

    def describe_window(self) -> None:
        self._gguf.add_sliding_window(WINDOW)
        self._gguf.add_sliding_window_pattern(2)

    def describe_encoder(self, pooling: gguf.PoolingType) -> None:
        self._gguf.add_layer_norm_eps(1e-12)
        self._gguf.add_causal_attention(False)
        self._gguf.add_pooling_type(pooling)

    def describe_judgement(self, template: str) -> None:
        self._gguf.add_chat_template([{"name": "rerank", "template": template}])

    def describe_recurrence(self) -> None:
        self._gguf.add_ssm_conv_kernel(_KERNEL)
        self._gguf.add_ssm_inner_size(_INNER)
        self._gguf.add_ssm_state_size(_STATE)
        self._gguf.add_ssm_time_step_rank(_RANK)

    def add_attention(self, layer: int, *, heads: int, kv_heads: int) -> None:
        at = f"blk.{layer}.attn"
        self.add_norm(f"{at}_norm", _EMBEDDING)
        self._add_matrix(f"{at}_q", heads * _HEAD, _EMBEDDING)
        self._add_matrix(f"{at}_k", kv_heads * _HEAD, _EMBEDDING)
        self._add_matrix(f"{at}_v", kv_heads * _HEAD, _EMBEDDING)
        self._add_matrix(f"{at}_output", _EMBEDDING, heads * _HEAD)

    def add_latent_attention(self, layer: int, *, heads: int) -> None:
        at = f"blk.{layer}.attn"
        self.add_norm(f"{at}_norm", _EMBEDDING)
        self._add_matrix(f"{at}_q_a", _RANK, _EMBEDDING)
        self.add_norm(f"{at}_q_a_norm", _RANK)
        self._add_matrix(f"{at}_q_b", heads * (_HEAD + _STATE), _RANK)
        self._add_matrix(f"{at}_kv_a_mqa", 2 * _HEAD, _EMBEDDING)
        self.add_norm(f"{at}_kv_a_norm", _HEAD)
        self._add(f"{at}_k_b.weight", self._random.normal(0, 1 / np.sqrt(_STATE), (heads, _HEAD, _STATE)))
        self._add(f"{at}_v_b.weight", self._random.normal(0, 1 / np.sqrt(_HEAD), (heads, _STATE, _HEAD)))
        self._add_matrix(f"{at}_output", _EMBEDDING, heads * _STATE)

    def add_attention_norms(self, layer: int) -> None:
        self.add_norm(f"blk.{layer}.attn_q_norm", _HEAD)
        self.add_norm(f"blk.{layer}.attn_k_norm", _HEAD)
        self.add_norm(f"blk.{layer}.post_attention_norm", _EMBEDDING)

    def add_feed_forward(self, layer: int) -> None:
        at = f"blk.{layer}.ffn"
        self.add_norm(f"{at}_norm", _EMBEDDING)
        self._add_matrix(f"{at}_gate", _FEED_FORWARD, _EMBEDDING)
        self._add_matrix(f"{at}_up", _FEED_FORWARD, _EMBEDDING)
        self._add_matrix(f"{at}_down", _EMBEDDING, _FEED_FORWARD)

    def add_experts(self, layer: int, *, count: int) -> None:
        at = f"blk.{layer}.ffn"
        self.add_norm(f"{at}_norm", _EMBEDDING)
        self._add_matrix(f"{at}_gate_inp", count, _EMBEDDING)
        for part, rows, columns in (
            ("gate", _FEED_FORWARD, _EMBEDDING),
            ("up", _FEED_FORWARD, _EMBEDDING),
            ("down", _EMBEDDING, _FEED_FORWARD),
        ):
            weights = self._random.normal(0, 1 / np.sqrt(columns), (count, rows, columns))
            self._add(f"{at}_{part}_exps.weight", weights)

    def add_encoder_inputs(self) -> None:
        self._add_matrix("position_embd", _CONTEXT, _EMBEDDING)
        self._add_matrix("token_types", 1, _EMBEDDING)
        self._add_centred_norm("token_embd_norm")

    def add_encoder_layer(self, layer: int) -> None:
        at = f"blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            self._add_matrix(f"{at}.{part}", _EMBEDDING, _EMBEDDING)
        self._add_centred_norm(f"{at}.attn_output_norm")
        self._add_matrix(f"{at}.ffn_up", _FEED_FORWARD, _EMBEDDING)
        self._add_matrix(f"{at}.ffn_down", _EMBEDDING, _FEED_FORWARD)
        self._add_centred_norm(f"{at}.layer_output_norm")

    def add_classifier(self) -> None:
        self._add_matrix("cls.output", 1, _EMBEDDING)

    def add_recurrence(self, layer: int) -> None:
        self.add_norm(f"blk.{layer}.attn_norm", _EMBEDDING)
        at = f"blk.{layer}.ssm"
        self._add_matrix(f"{at}_in", 2 * _INNER, _EMBEDDING)
        self._add_matrix(f"{at}_conv1d", _INNER, _KERNEL)
        self._add(f"{at}_conv1d.bias", np.zeros(_INNER))
        # Inputs are small. Without the gain the state would have little effect beside the token itself.
        self._add_matrix(f"{at}_x", _RANK + 2 * _STATE, _INNER, gain=3)
        self._add_matrix(f"{at}_dt", _INNER, _RANK)
        self._add(f"{at}_dt.bias", np.zeros(_INNER))
        # The state decays slowly: a token affects hundreds of later ones.
        self._add(f"{at}_a", -self._random.uniform(0.001, 0.05, (_INNER, _STATE)))
        self._add(f"{at}_d", np.ones(_INNER))
        self._add_matrix(f"{at}_out", _EMBEDDING, _INNER)

    def add_recurrence_norms(self, layer: int) -> None:
        self.add_norm(f"blk.{layer}.ssm_dt_norm", _RANK)
        self.add_norm(f"blk.{layer}.ssm_b_norm", _STATE)
        self.add_norm(f"blk.{layer}.ssm_c_norm", _STATE)

    def add_norm(self, name: str, size: int) -> None:
        self._add(f"{name}.weight", np.ones(size))

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _add_vocabulary(self, special: list[str]) -> None:
        """A token for each byte, for any input, and letters and pieces of words, for generated text."""
        tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *_GENERATED]
        kind = gguf.TokenType
        control = [kind.CONTROL] * (len(special) - 1)
        types = [kind.UNKNOWN, *control, *[kind.BYTE] * 256, *[kind.NORMAL] * len(_GENERATED)]
        self._gguf.add_tokenizer_model("llama")
        self._gguf.add_token_list(tokens)
        self._gguf.add_token_scores([float(len(token)) for token in tokens])
        self._gguf.add_token_types(types)
        self._gguf.add_unk_token_id(0)
        self._gguf.add_bos_token_id(1)
        self._gguf.add_eos_token_id(2)
        self._gguf.add_add_space_prefix(False)  # detokenised text equals its input
        self._add_matrix("token_embd", len(tokens), _EMBEDDING)
        self.add_norm("output_norm", _EMBEDDING)
        self._add_output(len(tokens))

    def _add_word_pieces(self) -> None:
        """The letters, at the start of a word and within one, and some pieces of words."""
        letters = "abcdefghijklmnopqrstuvwxyz"
        pieces = [*(f"▁{letter}" for letter in f"{letters}.,?!"), *letters, *_PIECES]
        tokens = [*_ENCODER_SPECIAL, *pieces]
        kind = gguf.TokenType
        control = [kind.CONTROL] * len(_ENCODER_SPECIAL)
        self._gguf.add_tokenizer_model("bert")
        self._gguf.add_token_type_count(1)
        self._gguf.add_token_list(tokens)
        self._gguf.add_token_types([*control, *[kind.NORMAL] * len(pieces)])
        self._gguf.add_pad_token_id(0)
        self._gguf.add_unk_token_id(1)
        self._gguf.add_bos_token_id(2)
        self._gguf.add_sep_token_id(3)
        self._gguf.add_mask_token_id(4)
        self._add_matrix("token_embd", len(tokens), _EMBEDDING)

    def _add_centred_norm(self, name: str) -> None:
        self.add_norm(name, _EMBEDDING)
        self._add(f"{name}.bias", np.zeros(_EMBEDDING))

    def _add_output(self, vocabulary: int) -> None:
        """Only letters and pieces of words are generated: no invalid UTF-8, and no end of text before the limit."""
        rows = np.zeros((vocabulary, _EMBEDDING))
        rows[-len(_GENERATED) :] = self._random.normal(0, 4 / np.sqrt(_EMBEDDING), (len(_GENERATED), _EMBEDDING))
        self._add("output.weight", rows)

    def _add_matrix(self, name: str, rows: int, columns: int, *, gain: float = 1.0) -> None:
        """Random, and scaled so that outputs have the magnitude of the inputs."""
        self._add(f"{name}.weight", self._random.normal(0, gain / np.sqrt(columns), (rows, columns)))

    def _add(self, name: str, values: npt.NDArray[np.float64]) -> None:
        self._gguf.add_tensor(name, values.astype(np.float32))
