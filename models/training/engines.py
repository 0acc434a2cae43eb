"""The two ways to run the evaluation: transformers in fp32, and this course's own engine."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Engine(Protocol):
    """Generates from rendered prompts."""

    def describe(self) -> str:
        """Name and version."""

    def generate(self, prompts: list[str], max_tokens: int, seed: int | None = None) -> list[tuple[str, bool]]:
        """(text, ended by itself) of each prompt; greedy, or drawn at temperature 1 where `seed` is given."""


class TransformersEngine:
    """transformers' `generate` in fp32, in batches of prompts of like length, padded on the left."""

    def __init__(self, folder: Path, batch_size: int = 0) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.backends.cuda.matmul.allow_tf32 = False
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.batch_size = batch_size or (512 if self.device == "cuda" else 64)
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(self.device).eval()
        if self.model.config.model_type == "mixtral":
            from models.training.moe import compute_all_experts

            compute_all_experts(self.model)

    def describe(self) -> str:
        """Name, version, device."""
        import transformers

        return f"transformers {transformers.__version__} on {self.device}"

    def generate_ids(
        self, prompts: list[str], max_tokens: int, seed: int | None = None
    ) -> list[tuple[list[int], list[int]]]:
        """(prompt ids, new ids up to and with EOS) of each prompt."""
        import torch

        encoded = [self.tokenizer(prompt, add_special_tokens=False).input_ids for prompt in prompts]
        order = sorted(range(len(prompts)), key=lambda i: len(encoded[i]))
        results: list[tuple[list[int], list[int]]] = [([], [])] * len(prompts)
        if seed is not None:
            torch.manual_seed(seed)
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            batch = self.tokenizer.pad({"input_ids": [encoded[i] for i in chosen]}, return_tensors="pt").to(self.device)
            with torch.no_grad():
                out = self.model.generate(
                    input_ids=batch["input_ids"],
                    attention_mask=batch["attention_mask"],
                    max_new_tokens=max_tokens,
                    do_sample=seed is not None,
                    temperature=1.0 if seed is not None else None,
                    top_k=0 if seed is not None else None,
                )
            for i, row in zip(chosen, out[:, batch["input_ids"].shape[1] :].tolist(), strict=True):
                eos = self.tokenizer.eos_token_id
                results[i] = (encoded[i], row[: row.index(eos) + 1] if eos in row else row)
        return results

    def generate(self, prompts: list[str], max_tokens: int, seed: int | None = None) -> list[tuple[str, bool]]:
        """See `Engine.generate`."""
        eos = self.tokenizer.eos_token_id
        return [
            (self.tokenizer.decode(new, skip_special_tokens=True), new[-1:] == [eos])
            for _, new in self.generate_ids(prompts, max_tokens, seed)
        ]

    def held_out_loss(self, shards: int = 1) -> dict[str, float]:
        """Mean cross entropy (nats per token) of answers in conversations of seeds that training never used."""
        import torch

        from models.training.chat_format import CLASS_ANSWER
        from models.training.dataset import make_shard

        total, count = 0.0, 0
        folder = Path(self.tokenizer.name_or_path)
        for seed in range(9_000_000, 9_000_000 + shards):
            for length, rows in make_shard(seed, str(folder / "tokenizer.json"), 1500).items():
                for start in range(0, len(rows.ids), max(1, 16_384 // length)):
                    part = slice(start, start + max(1, 16_384 // length))
                    ids = torch.from_numpy(rows.ids[part].astype("int64")).to(self.device)
                    mask = torch.from_numpy(rows.classes[part]).to(self.device)[:, 1:] == CLASS_ANSWER
                    with torch.no_grad():
                        logits = self.model(input_ids=ids[:, :-1]).logits.float()
                    losses = torch.nn.functional.cross_entropy(
                        logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
                    )
                    total += float(losses[mask.flatten()].sum())
                    count += int(mask.sum())
        return {"nats_per_answer_token": round(total / count, 4), "answer_tokens": count}

    def draft_agreement(self, folder: Path, prompts: list[str], max_tokens: int) -> dict[str, float]:
        """How often the draft's argmax is pocket's next token, on pocket's own greedy answers."""
        import torch
        from transformers import AutoModelForCausalLM

        draft = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(self.device).eval()
        same, count, accepted, passes = 0, 0, 0, 0
        for prompt, new in self.generate_ids(prompts, max_tokens):
            ids = torch.tensor([prompt + new], device=self.device)
            with torch.no_grad():
                guess = draft(input_ids=ids[:, :-1]).logits.argmax(-1)[0, len(prompt) - 1 :].tolist()
            hits = [g == n for g, n in zip(guess, new, strict=True)]
            same, count = same + sum(hits), count + len(hits)
            i = 0
            while i < len(hits):
                run = 0
                while run < 4 and i + run < len(hits) and hits[i + run]:
                    run += 1
                accepted, passes, i = accepted + run, passes + 1, i + run + 1
        return {
            "greedy_agreement": round(same / count, 4),
            "tokens": count,
            "mean_accepted_of_4": round(accepted / passes, 3),
        }


class MiniEngine:
    """`mini_vllm.LLM` on the same prompts."""

    def __init__(self, folder: Path) -> None:
        from mini_vllm import LLM

        self.llm = LLM(model=str(folder), max_num_seqs=64)

    def describe(self) -> str:
        """Name of the engine."""
        return "mini_vllm"

    def generate(self, prompts: list[str], max_tokens: int, seed: int | None = None) -> list[tuple[str, bool]]:
        """See `Engine.generate`."""
        from mini_vllm import SamplingParams

        params = SamplingParams(temperature=0.0 if seed is None else 1.0, seed=seed, max_tokens=max_tokens)
        tokenizer = self.llm.get_tokenizer()
        ids = [{"prompt_token_ids": tokenizer.encode(prompt, add_special_tokens=False)} for prompt in prompts]
        outputs = self.llm.generate(ids, params, use_tqdm=False)
        return [(out.outputs[0].text, out.outputs[0].finish_reason == "stop") for out in outputs]
