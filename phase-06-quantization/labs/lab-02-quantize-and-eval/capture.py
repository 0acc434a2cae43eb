"""Makes `captured/` anew: quantizes the checkpoint, runs real_run.py in every arm, and writes the provenance.

    python capture.py --python .venv-vllm/bin/python --model models/pocket

Maintainers run this when the pinned release moves. All arms score the same 96 conversations, from a seed that training
did not use. Needs `tokenizers`.
"""

import json
import lzma
import random
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.captures import arguments, compact, keep_lines, provenance_of, run, write_provenance  # noqa: E402

CAPTURED = HERE / "captured"
SEED = 20_260_600  # far from the seeds of models/training/training.json
SCHEMES = {"fp32-w8a8": "w8a8", "bf16-w4a16": "w4a16", "bf16-w4a16-g32": "w4a16-g32"}
ARMS = ("fp32", "fp32-w8a8", "bf16", "bf16-w4a16", "bf16-w4a16-g32", "bf16-kv-fp8", "bf16-online-fp8", "bf16-kv-int8")
KEEP = re.compile(r"Selected \w+ for|Using \w+ for|KV cache size|Maximum concurrency|data type to store|\bError\b:")


def checkpoint(arm: str, model: str, folder: Path) -> str:
    """The checkpoint of an arm: the float one, or a quantized copy made now."""
    if arm not in SCHEMES:
        return model
    import make_checkpoint

    make_checkpoint.convert(Path(model), folder / SCHEMES[arm], SCHEMES[arm])
    return str(folder / SCHEMES[arm])


def write_texts(model: str) -> None:
    """96 generated conversations of at most 400 tokens, as token ids."""
    from tokenizers import Tokenizer

    from models.training.chat_format import to_ids
    from models.training.conversations import make_conversation
    from models.training.dataset import encoder

    encode, special = encoder(Tokenizer.from_file(str(Path(model) / "tokenizer.json")))
    rng, texts = random.Random(SEED), []
    while len(texts) < 96:
        ids, _ = to_ids(make_conversation(rng), encode, special)
        texts += [ids] if len(ids) <= 400 else []
    lines = ",\n ".join(json.dumps(ids, separators=(",", ":")) for ids in texts)
    (CAPTURED / "texts.json.xz").write_bytes(lzma.compress(f"[\n {lines}\n]\n".encode()))


def main() -> None:
    """Run all arms."""
    args = arguments(__doc__ or "")
    CAPTURED.mkdir(exist_ok=True)
    commands = {"texts.json.xz": f"capture.py, 96 conversations of models/training, seed {SEED}"}
    write_texts(args.model)
    with tempfile.TemporaryDirectory() as name:
        for arm in ARMS:
            model = checkpoint(arm, args.model, Path(name))
            log, result = run(args.python, HERE / "real_run.py", model, "--arm", arm)
            (CAPTURED / f"cpu-{arm}.json.xz").write_bytes(lzma.compress(compact(result).encode()))
            (CAPTURED / f"cpu-{arm}.log").write_text(keep_lines(log, KEEP, model), encoding="utf-8")
            made = f"make_checkpoint.py --scheme {SCHEMES[arm]}; " if arm in SCHEMES else ""
            commands[f"cpu-{arm}.json.xz"] = f"{made}real_run.py --model {Path(model).name} --arm {arm}"
            print(arm, "done", result.get("error", ""))
    edited = "logs: only the lines that match KEEP in capture.py; json: no"
    write_provenance(CAPTURED, "cpu", provenance_of(args.python, args.model, commands, edited))


if __name__ == "__main__":
    main()
