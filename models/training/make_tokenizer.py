"""Trains the byte-level BPE of 4096 entries on generated text and writes the tokenizer files of a checkpoint."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from models.training.chat_format import BOS, CHAT_TEMPLATE, END, PAD, SPECIAL_TOKENS
from models.training.conversations import make_conversation

VOCAB_SIZE = 4096


def corpus(seed: int, count: int) -> list[str]:
    """Texts of generated conversations, without special tokens."""
    rng = random.Random(seed)
    texts: list[str] = []
    for _ in range(count):
        conversation = make_conversation(rng)
        texts += (
            [conversation.plain]
            if conversation.plain is not None
            else [content for _, content in conversation.messages]
        )
    return texts


def train_tokenizer(seed: int = 1, count: int = 40_000) -> Tokenizer:
    """A byte-level BPE whose pre-tokenizer cuts every digit apart, so that sums are sums of digits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(seed, count), trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(
            f"the corpus gives only {tokenizer.get_vocab_size()} entries, {VOCAB_SIZE} are needed: raise count={count}"
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` (with the chat template) and `special_tokens_map.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    names = {"bos_token": BOS, "eos_token": END, "pad_token": PAD}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        **names,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "special_tokens_map.json").write_text(json.dumps(names, indent=2) + "\n", encoding="utf-8")
