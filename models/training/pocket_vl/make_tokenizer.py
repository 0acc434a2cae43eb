"""Trains the byte-level BPE of 640 entries on generated chats: `python -m models.training.pocket_vl.make_tokenizer`."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from models.training.chat_format import BOS
from models.training.pocket_vl.conversations import make_chat
from models.training.pocket_vl.layout import IMAGE, SPECIAL_TOKENS, VOCAB_SIZE, write_settings

ALONE = r"\p{N}|[A-Z](?=[A-Z])|(?<=[A-Z])[A-Z]"
"""Each digit, and each letter of a word in capitals, is a token: what a picture spells is spelt."""


def corpus(seed: int, count: int) -> list[str]:
    """Texts of generated chats, without special tokens."""
    rng = np.random.default_rng(seed)
    chats = [make_chat(rng, int(rng.choice(3, p=[0.1, 0.7, 0.2]))) for _ in range(count)]
    return [text.replace(IMAGE, "") for chat in chats for _, text in chat.messages]


def train_tokenizer(seed: int = 1, count: int = 6000) -> Tokenizer:
    """As pocket's, with a smaller vocabulary and letters in capitals cut apart."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(ALONE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(seed, count), trainer)
    if tokenizer.get_vocab_size() > VOCAB_SIZE:
        raise ValueError(f"{tokenizer.get_vocab_size()} entries, the model has room for {VOCAB_SIZE}")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("models/pocket-vl"))
    folder = parser.parse_args().out
    write_settings(folder)
    tokenizer = train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    print(f"{folder}: {tokenizer.get_vocab_size()} entries")


if __name__ == "__main__":
    main()
