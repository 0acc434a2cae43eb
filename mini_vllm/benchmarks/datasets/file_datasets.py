"""Requests read from a file: conversations in ShareGPT's form, and prompts of one's own.

Upstream twin: `vllm/benchmarks/datasets/datasets.py`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from mini_vllm.benchmarks.datasets.datasets import BenchmarkDataset, SampleRequest
from mini_vllm.benchmarks.datasets.utils import is_valid_sequence


class ShareGPTDataset(BenchmarkDataset):
    """First question and first answer of each conversation; the answer only tells how long to go on.

    The file: [{"conversations": [{"value": …}, {"value": …}, …]}, …].
    Upstream: upstream/vllm/benchmarks/datasets/datasets.py:1312 — `ShareGPTDataset`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        entries = json.loads(_read(self.dataset_path))
        if not isinstance(entries, list):
            raise ValueError(f"{self.dataset_path}: expected a list of conversations")
        self.data = [entry for entry in entries if len(entry.get("conversations", [])) >= 2]
        if not self.disable_shuffle:
            random.Random(self.random_seed).shuffle(self.data)

    def sample(
        self,
        tokenizer: Any,
        num_requests: int,
        request_id_prefix: str = "",
        no_oversample: bool = False,
        output_len: int | None = None,
        **kwargs: Any,
    ) -> list[SampleRequest]:
        """output_len: in place of the answers' own lengths. Raises ValueError where no pair can be used."""
        samples: list[SampleRequest] = []
        for entry in self.data:
            if len(samples) >= num_requests:
                break
            prompt, answer = (turn["value"] for turn in entry["conversations"][:2])
            prompt_len = len(tokenizer.encode(prompt))
            wanted = len(tokenizer.encode(answer)) if output_len is None else output_len
            if is_valid_sequence(prompt_len, wanted, skip_min_output_len_check=output_len is not None):
                samples.append(SampleRequest(prompt, prompt_len, wanted, request_id_prefix + str(len(samples))))
        self.maybe_oversample_requests(samples, num_requests, request_id_prefix, no_oversample)
        return samples


class CustomDataset(BenchmarkDataset):
    """Lines of {"prompt": …}, with "output_tokens" where the length is to come from the file.

    Upstream: upstream/vllm/benchmarks/datasets/datasets.py:2186 — `CustomDataset`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.dataset_path is not None and not str(self.dataset_path).endswith(".jsonl"):
            raise ValueError(f"Only JSONL format is supported for CustomDataset, got {self.dataset_path}")
        self.data = []
        for number, line in enumerate(_read(self.dataset_path).splitlines(), start=1):
            if line.strip():
                self.data.append(self._row(line, number))
        if not self.disable_shuffle:
            random.Random(self.random_seed).shuffle(self.data)

    def _row(self, line: str, number: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{self.dataset_path} line {number}: not valid JSON ({error})") from None
        if not isinstance(row, dict) or "prompt" not in row:
            raise ValueError(f"{self.dataset_path} line {number}: JSONL file must contain a 'prompt' column.")
        return row

    def sample(
        self,
        tokenizer: Any,
        num_requests: int,
        request_id_prefix: str = "",
        no_oversample: bool = False,
        output_len: int | None = None,
        skip_chat_template: bool = False,
        **kwargs: Any,
    ) -> list[SampleRequest]:
        """num_requests: 0 or less means all. output_len: None or -1 means the file's.

        The chat template is applied where the tokenizer has one (upstream: always, or an error).
        """
        num_requests = len(self.data) if num_requests <= 0 else num_requests
        samples = []
        for i, item in enumerate(self.data[:num_requests]):
            prompt = item["prompt"]
            if not skip_chat_template and hasattr(tokenizer, "apply_chat_template"):
                turn = [{"role": "user", "content": prompt}]
                prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
            prompt_len = len(tokenizer.encode(prompt)) if tokenizer is not None else 1
            samples.append(
                SampleRequest(prompt, prompt_len, self._output_len(item, output_len), request_id_prefix + str(i))
            )
        self.maybe_oversample_requests(samples, num_requests, request_id_prefix, no_oversample)
        return samples

    def _output_len(self, item: dict[str, Any], output_len: int | None) -> int:
        if output_len is not None and output_len != -1:
            return output_len
        if "output_tokens" not in item:
            raise ValueError(
                "If no output length is provided the custom dataset must contain an 'output_tokens' field."
            )
        try:
            return int(item["output_tokens"])
        except (ValueError, TypeError):
            raise ValueError(
                f"Invalid value for 'output_tokens' in custom dataset: '{item['output_tokens']}'. Must be an integer."
            ) from None


def _read(path: str | None) -> str:
    if path is None:
        raise ValueError("dataset_path must be provided for loading data.")
    return Path(path).read_text(encoding="utf-8")
