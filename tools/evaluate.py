"""Run lm-evaluation-harness against a real server: every score must equal llama.cpp's score for the demo model.

Usage: python tools/evaluate.py (`make evaluate` installs what it needs first). Writes two tasks and their data, starts
the server, runs the harness's own command with its `local-completions` client, and exits 1 if a score differs.
Nothing is downloaded: the tokeniser is made from the model's file.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from llama_cpp import Llama
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from paddock.fleet.catalogue.demo import find_demo

TOLERANCE = 1e-3
QUESTIONS: list[dict[str, Any]] = [
    {"question": "What do horses eat?", "choices": ["hay", "stones", "clouds"], "answer": 0},
    {"question": "How many legs has a horse?", "choices": ["two", "four", "eleven"], "answer": 1},
    {"question": "Which of these is a colour?", "choices": ["seven", "Tuesday", "dark green"], "answer": 2},
    {"question": "What is 2 + 3?", "choices": ["4", "5", "23"], "answer": 1},
    {"question": "Where is Bern?", "choices": ["in Switzerland", "on the Moon"], "answer": 0},
    {"question": "Wie heißt ein junges Pferd?", "choices": ["Fohlen", "Kälbchen", "Küken"], "answer": 0},
    {"question": "What melts in the sun?", "choices": [" iron", " ice", " sand"], "answer": 1},
    {"question": "Who wrote Hamlet?", "choices": ["William Shakespeare", "a horse", "nobody"], "answer": 0},
]
TEXTS = [
    "The horse stood in the paddock and looked over the fence.",
    "Once upon a time there was a little girl who lived near the forest with 3 dogs.",
    "Ein Pferd frisst Heu, trinkt Wasser und läuft über die Wiese. 🐎",
]
CHOICE_TASK = {
    "task": "paddock_choice",
    "output_type": "multiple_choice",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "answer",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}
ROLLING_TASK = {
    "task": "paddock_rolling",
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{text}}",
    "metric_list": [{"metric": "byte_perplexity"}],
}


def main() -> None:
    model = find_demo()
    assert model is not None, "the demo model is missing: paddock pull demo"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_tokenizer(model, folder / "tokenizer")
        _write_task(CHOICE_TASK, QUESTIONS, folder)
        _write_task(ROLLING_TASK, [{"text": text} for text in TEXTS], folder)
        with _server(model) as url:
            results, samples = _evaluate(url, folder)
    direct = Directly(model)
    differences = [*_compare_choices(direct, results, samples), *_compare_rolling(direct, results, samples)]
    largest = max(differences)
    print(f"{len(differences)} log-likelihoods; the largest difference is {largest:.2g} (limit: {TOLERANCE})")
    if largest > TOLERANCE:
        sys.exit("the scores differ from llama.cpp's own")


def _write_tokenizer(model: Path, folder: Path) -> None:
    """The model's tokeniser for Hugging Face's library: byte-level BPE, one token per digit."""
    fields = gguf.GGUFReader(model).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    kinds: list[int] = fields["tokenizer.ggml.token_type"].contents()
    tokenizer = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    controls = [token for token, kind in zip(tokens, kinds, strict=True) if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in controls])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    bos, eos = (tokens[fields[f"tokenizer.ggml.{name}_token_id"].contents()] for name in ("bos", "eos"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _write_task(task: dict[str, Any], rows: list[dict[str, Any]], folder: Path) -> None:
    data = folder / f"{task['task']}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
    (folder / f"{task['task']}.yaml").write_text(json.dumps({**task, **source}))  # JSON is YAML too


@contextmanager
def _server(model: Path) -> Iterator[str]:
    """In deterministic mode, because batched results differ in the last bits."""
    command = [sys.executable, "-m", "paddock", "serve", "--port", "0", "-m", str(model), "-c", "2048", "-np", "4"]
    process = subprocess.Popen(
        [*command, "--deterministic"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        address = next(filter(None, (re.search(r"on (http://\S+)", line) for line in process.stdout)))
        yield address[1]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _evaluate(url: str, folder: Path) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The results of both tasks, and their samples in order."""
    arguments = {
        "model": "any",
        "base_url": f"{url}/v1/completions",
        "tokenizer": str(folder / "tokenizer"),
        "tokenizer_backend": "huggingface",
        "num_concurrent": "4",
        "max_retries": "1",
    }
    names = (CHOICE_TASK["task"], ROLLING_TASK["task"])
    command = [
        *(sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"),
        *("--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())),
        *("--tasks", ",".join(map(str, names)), "--include_path", str(folder)),
        *("--output_path", str(folder / "output"), "--log_samples"),
    ]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    done = subprocess.run(command, env={**os.environ, **offline}, timeout=500)
    if done.returncode != 0:
        sys.exit("the harness failed")
    output = folder / "output"
    results = json.loads(next(output.rglob("results_*.json")).read_text())["results"]
    samples = {}
    for name in names:
        lines = next(output.rglob(f"samples_{name}_*.jsonl")).read_text().splitlines()
        samples[str(name)] = sorted(map(json.loads, lines), key=lambda sample: int(sample["doc_id"]))
    return results, samples


class Directly:
    """Log-likelihoods from llama-cpp-python, one prompt at a time."""

    def __init__(self, model: Path) -> None:
        self._llama = Llama(str(model), n_ctx=2048, n_batch=128, flash_attn=True, logits_all=True, verbose=False)

    def tokens(self, text: str) -> list[int]:
        return list(self._llama.tokenize(text.encode(), add_bos=False, special=True))

    @property
    def prefix(self) -> int:
        return int(self._llama.token_bos())

    def likelihood(self, tokens: list[int], known: int) -> float:
        """The log-likelihood of all tokens after the first `known`."""
        self._llama.reset()
        self._llama.eval(tokens)
        rows = self._llama.scores[: len(tokens)].astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        return float(sum(rows[place - 1, tokens[place]] for place in range(known, len(tokens))))


def _compare_choices(direct: Directly, results: dict[str, Any], samples: dict[str, Any]) -> Iterator[float]:
    right = 0
    for row, sample in zip(QUESTIONS, samples["paddock_choice"], strict=True):
        context = f"Question: {row['question']}\nAnswer:"
        known = len(direct.tokens(context))
        ours = [direct.likelihood(direct.tokens(f"{context} {choice}"), known) for choice in row["choices"]]
        theirs = [float(answer[0][0]) for answer in sample["resps"]]
        right += int(np.argmax(ours)) == row["answer"]
        yield from (abs(one - other) for one, other in zip(ours, theirs, strict=True))
    _agree("accuracy", results["paddock_choice"]["acc,none"], right / len(QUESTIONS))


def _compare_rolling(direct: Directly, results: dict[str, Any], samples: dict[str, Any]) -> Iterator[float]:
    total = 0.0
    for text, sample in zip(TEXTS, samples["paddock_rolling"], strict=True):
        ours = direct.likelihood([direct.prefix, *direct.tokens(text)], 1)
        total += ours
        yield abs(ours - float(sample["resps"][0][0]))
    _agree("perplexity", results["paddock_rolling"]["byte_perplexity,none"], math.exp(-total / sum(map(_size, TEXTS))))


def _size(text: str) -> int:
    return len(text.encode())


def _agree(what: str, by_the_harness: float, directly: float) -> None:
    print(f"{what}: {by_the_harness:.6f} by the harness, {directly:.6f} directly")
    if not math.isclose(by_the_harness, directly, rel_tol=TOLERANCE):
        sys.exit(f"the {what} differs from llama.cpp's own")


if __name__ == "__main__":
    main()
