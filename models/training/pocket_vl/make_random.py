"""A checkpoint of pocket-vl's layout with random weights: `python -m models.training.pocket_vl.make_random FOLDER`.

For tests of loaders and of parity, before there is a trained one or beside it. Needs numpy alone. Without `--tokenizer`
each byte is a token of its own; the ids behind them stay without a text.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm import write_safetensors
from mini_vllm.tokenizers.bpe import CHAR_TO_BYTE
from models.training.chat_format import BOS
from models.training.pocket_vl.layout import DTYPE, SPECIAL_TOKENS, TOKEN_IDS, shapes, write_settings


def tensors(seed: int) -> dict[str, np.ndarray]:
    """Norms are 1 + noise, matrices keep the size of what they multiply, the rest is small."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes().items():
        matrix = len(shape) > 1 and "embed_tokens" not in name and "position" not in name
        array = rng.standard_normal(shape) * (np.prod(shape[1:]) ** -0.5 if matrix else 0.1)
        norm = ("norm" in name or "layrnorm" in name) and name.endswith("weight")
        found[name] = (array + norm).astype(DTYPE)
    return found


def byte_tokenizer() -> dict[str, Any]:
    """`tokenizer.json` of a byte-level BPE that merges nothing."""
    special = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    characters = sorted(CHAR_TO_BYTE)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **special} for i, token in enumerate(SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                {"SpecialToken": {"id": BOS, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {BOS: {"id": BOS, "ids": [TOKEN_IDS["bos_token_id"]], "tokens": [BOS]}},
        },
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate([*SPECIAL_TOKENS, *characters])},
            "merges": [],
        },
    }


def make_random(folder: Path, seed: int = 0, tokenizer: Path | None = None) -> None:
    """Write the whole folder. tokenizer: a folder whose `tokenizer.json` to take; None: a token for each byte."""
    write_settings(folder)
    if tokenizer is None:
        (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer(), indent=2) + "\n", encoding="utf-8")
    else:
        shutil.copyfile(tokenizer / "tokenizer.json", folder / "tokenizer.json")
    write_safetensors(folder / "model.safetensors", tensors(seed))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path, help="a folder with a tokenizer.json of this layout")
    args = parser.parse_args()
    make_random(args.folder, args.seed, args.tokenizer)
    print(args.folder)


if __name__ == "__main__":
    main()
