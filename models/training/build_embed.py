"""Makes pocket-embed: `python -m models.training.build_embed --out models/pocket-embed`. Seven minutes on a GPU.

Tokens first get vectors from what stands near them (positive pointwise mutual information, its first singular vectors:
https://papers.nips.cc/paper/5477). Then a BERT of two layers is trained on pairs of question and section, each against
the others of its batch (InfoNCE, https://arxiv.org/abs/1807.03748), for the whole vector and for its first 64 and 32
numbers (https://arxiv.org/abs/2205.13147). The first third of the time trains the vectors of the tokens alone, without
the layers, which is far cheaper a step. What is kept is the state that found most of the development questions of
`models/pocket-embed/questions.toml`; the test questions are not read. `--minutes 1` is a try.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel

from models.search.evaluate import found_among, questions_of
from models.search.index import passages_of
from models.search.sections import Section, pages_to_search, read_sections, spaced
from models.training.search_pairs import Pairs, snapshot

PAD, CLS, SEP = "[PAD]", "[CLS]", "[SEP]"
VOCAB, HIDDEN, LAYERS, HEADS, INTER, POSITIONS = 6144, 128, 2, 4, 384, 256
DIMENSIONS = (128, 64, 32)
TEMPERATURE = 0.05


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE on small letters, with the frame [CLS] … [SEP]."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in (PAD, CLS, SEP)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = [(t, tokenizer.token_to_id(t)) for t in (CLS, SEP)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}", pair=f"{CLS} $A {SEP} $B:1 {SEP}:1", special_tokens=ids
    )
    return tokenizer


def first_vectors(rows: list[list[int]], window: int = 5) -> np.ndarray:
    """[VOCAB, HIDDEN] of unit length: singular vectors of the mutual information of tokens that stand near."""
    counts = np.zeros((VOCAB, VOCAB), np.float32)
    for row in rows:
        ids = np.asarray(row)
        for apart in range(1, window + 1):
            np.add.at(counts, (ids[:-apart], ids[apart:]), 1 / apart)
    counts += counts.T
    each = counts.sum(1) + 1e-6
    smoothed = each**0.75 / (each**0.75).sum()
    with np.errstate(divide="ignore"):
        info = np.maximum(np.log(counts / each[:, None] / smoothed[None]), 0)
    u, s, _ = torch.svd_lowrank(torch.from_numpy(info), q=HIDDEN + 16, niter=4)
    vectors = (u[:, :HIDDEN] * s[:HIDDEN].sqrt()).numpy()
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    return _weighted(vectors, rows)


def _weighted(vectors: np.ndarray, rows: list[list[int]]) -> np.ndarray:
    """A token of many sections says little: its vector turns to one direction that all such tokens share."""
    in_rows = np.zeros(VOCAB)
    for row in rows:
        in_rows[np.unique(row)] += 1
    weight = np.clip(np.log(len(rows) / np.maximum(in_rows, 1)) / np.log(40), 0.05, 1)[:, None]
    shared = np.sign(np.random.default_rng(0).standard_normal(HIDDEN)) / HIDDEN**0.5
    vectors = vectors - vectors.mean(0)
    vectors -= (vectors @ shared)[:, None] * shared
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    return (weight * vectors + np.sqrt(1 - weight**2) * shared).astype(np.float32)


def make_model(vectors: np.ndarray) -> BertModel:
    """Two layers that begin close to passing their input on."""
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=INTER, max_position_embeddings=POSITIONS, type_vocab_size=2, pad_token_id=0,
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.copy_(torch.from_numpy(vectors))
        model.embeddings.position_embeddings.weight.mul_(0.2)
        model.embeddings.token_type_embeddings.weight.zero_()
        for layer in model.encoder.layer:
            layer.attention.output.dense.weight.mul_(0.1)
            layer.output.dense.weight.mul_(0.1)
    return model


def embed(model: BertModel, tokenizer: Tokenizer, texts: list[str], whole: bool) -> torch.Tensor:
    """Mean of the hidden states [n, HIDDEN]; of the embedded tokens, where the model is not yet `whole`."""
    encoded = tokenizer.encode_batch(texts)
    ids = torch.tensor([e.ids for e in encoded], device=model.device)
    mask = torch.tensor([e.attention_mask for e in encoded], device=model.device)
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state if whole else model.embeddings(ids)
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def loss_of(questions: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    """InfoNCE both ways, over the lengths of `DIMENSIONS`."""
    total, truth = torch.zeros((), device=questions.device), torch.arange(len(questions), device=questions.device)
    for size in DIMENSIONS:
        q, t = (torch.nn.functional.normalize(x[:, :size], dim=-1) for x in (questions, texts))
        scores = q @ t.T / TEMPERATURE
        both = torch.nn.functional.cross_entropy(scores, truth) + torch.nn.functional.cross_entropy(scores.T, truth)
        total = total + both * (1 if size == HIDDEN else 0.3)
    return total


class Judge:
    """How many development questions find a right place among three, by vectors alone.

    Args:
        root: the course. sections: all of those that are searched.
    """

    def __init__(self, root: Path, sections: list[Section]) -> None:
        self.sections, self.questions = sections, questions_of(root, "development")
        pieces = [passages_of(section) for section in sections]
        self.texts = [text for each in pieces for text in each]
        self.owners = torch.repeat_interleave(torch.tensor([len(each) for each in pieces]))
        self.best, self.state = -1.0, dict[str, torch.Tensor]()

    @torch.no_grad()
    def look(self, model: BertModel, tokenizer: Tokenizer) -> float:
        """recall@3; the best state so far is kept."""
        model.eval()
        asked = [spaced(question["ask"]) for question in self.questions]
        rows = [
            embed(model, tokenizer, texts[i : i + 1024], True)
            for texts in (asked, self.texts)
            for i in range(0, len(texts), 1024)
        ]
        both = torch.nn.functional.normalize(torch.cat(rows), dim=-1).float().cpu()
        near = both[: len(asked)] @ both[len(asked) :].T
        each = torch.full((len(asked), len(self.sections)), -1.0)
        each = each.scatter_reduce(1, self.owners.expand(len(asked), -1), near, "amax")
        right = [found_among(self.sections, each[i].numpy(), q, 3) for i, q in enumerate(self.questions)]
        share = sum(right) / len(right)
        if share > self.best:
            self.best, self.state = share, {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
        model.train()
        return share


def train(
    model: BertModel, tokenizer: Tokenizer, pairs: Pairs, minutes: float, batch: int, rate: float, judge: Judge | None
) -> dict[str, Any]:
    """AdamW until the time is over; the rate falls with the time that is left. No `judge`: the layers are left out."""
    start, steps, shown, whole = time.time(), 0, 0.0, judge is not None
    optimizer = torch.optim.AdamW(model.parameters(), lr=0, weight_decay=0.01)
    model.train()
    while (gone := (time.time() - start) / 60 / minutes) < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (steps + 1) / 20) * (0.5 + 0.5 * math.cos(math.pi * gone))
        drawn = pairs.batch(batch)
        loss = loss_of(*(embed(model, tokenizer, [one[side] for one in drawn], whole) for side in (0, 1)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        shown = 0.95 * shown + 0.05 * float(loss.detach()) if steps else float(loss.detach())
        steps += 1
        if steps % 250 == 0:
            share = f", {judge.look(model, tokenizer):.1%} of the development questions" if judge else ""
            print(f"{steps} steps, {gone:.0%} of the time, loss {shown:.3f}{share}", flush=True)
    return {"steps": steps, "batch": batch, "loss": round(shown, 4)}


def write(model: BertModel, tokenizer: Tokenizer, folder: Path, record: dict[str, Any]) -> None:
    """A checkpoint as sentence-transformers lay it out, which vLLM reads too."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model.half().save_pretrained(folder, safe_serialization=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    files = {
        "config.json": {**config, "matryoshka_dimensions": sorted(DIMENSIONS)},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS, "pad_token": PAD,
            "cls_token": CLS, "sep_token": SEP, "clean_up_tokenization_spaces": False,
        },
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": HIDDEN, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False,
        },
        "sentence_bert_config.json": {"max_seq_length": POSITIONS, "do_lower_case": False},
        "training.json": record,
    }  # fmt: skip
    (folder / "1_Pooling").mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Snapshot, tokenizer, first vectors, training, checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("models/pocket-embed"))
    parser.add_argument("--commit", default="HEAD", help="whose pages it learns from")
    parser.add_argument("--here", action="store_true", help="the pages as they lie here; --commit only names them")
    parser.add_argument("--minutes", type=float, default=7)
    parser.add_argument("--batch", type=int, default=384)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    root, commit = Path("."), args.commit
    if not args.here:
        asked = ["git", "rev-parse", commit]
        commit = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        root = snapshot(root, commit)
    pairs = Pairs(root, args.seed)
    texts = [spaced(f"{s.page}: {s.title}. {s.text}") for s in pairs.sections]
    tokenizer = train_tokenizer(texts)
    vectors = first_vectors([tokenizer.encode(text).ids for text in texts])
    tokenizer.enable_padding(pad_id=0, pad_token=PAD)
    tokenizer.enable_truncation(96)
    model = make_model(vectors).to(args.device)
    judge = Judge(Path("."), read_sections(root, pages_to_search(root)))
    print(f"{len(texts)} sections, {pairs.count} questions, {sum(p.numel() for p in model.parameters())} weights")
    first = train(model, tokenizer, pairs, args.minutes / 5, 2 * args.batch, 4e-3, None)
    run = {"tokens alone": first, **train(model, tokenizer, pairs, args.minutes * 4 / 5, args.batch, 1e-3, judge)}
    judge.look(model, tokenizer)
    model.load_state_dict(judge.state)
    record = {"commit": commit, "sections": len(texts), "questions": pairs.count, "minutes": args.minutes, **run}
    record |= {"development recall@3": round(judge.best, 4), "device": args.device}
    write(model.cpu(), tokenizer, args.out, {**record, "seed": args.seed, "torch": torch.__version__})


if __name__ == "__main__":
    main()
