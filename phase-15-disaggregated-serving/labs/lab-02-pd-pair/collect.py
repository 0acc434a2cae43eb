"""Makes `captured/` from the folders that gpu_run.py and cpu_run.py wrote.

python collect.py gpu FOLDER [FOLDER ...]     # arms of several calls on one machine, put together
python collect.py cpu FOLDER
"""

import json
import lzma
import sys
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
TOKENS = 32
UNIT = 1e4  # a tenth of a millisecond


def compact_row(row: dict) -> list:
    """[kind, key, start, P's answer or None, first tokens, first token's time and the gaps after it]; tenths of ms."""
    moments = [round(UNIT * moment) for moment in row["times"]]
    p_done = round(UNIT * row["p_done"]) if "p_done" in row else None
    gaps = moments[:1] + [after - before for before, after in pairwise(moments)]
    return [row["kind"], row["key"], round(UNIT * row["start"]), p_done, row["tokens"][:TOKENS], gaps]


def compact_trace(trace: list[dict]) -> list[list]:
    """[tensors, bytes, seconds on the wire] of each request that P sent."""
    return [[row["tensors"], row["bytes"], round(row["busy_s"], 6)] for row in trace if row["what"] == "sent"]


def collect(name: str, folders: list[Path]) -> None:
    """Write `NAME.json`, `NAME-times.json.xz` and NAME's part of the provenance."""
    found = [(folder, json.loads((folder / "capture.json").read_text(encoding="utf-8"))) for folder in folders]
    about, arms, times, sent, lines, engines = dict(found[0][1]["about"]), {}, {}, [], {}, {}
    for folder, capture in found:
        for arm, result in capture["arms"].items():
            if "failed" not in result:
                arms[arm] = result
                raw = folder / f"raw-{arm}.json"
                if raw.is_file():
                    rows = sorted(json.loads(raw.read_text(encoding="utf-8")), key=lambda row: row["start"])
                    times[arm] = [compact_row(row) for row in rows]
        for trace in capture.get("transfers", {}).values():
            sent += compact_trace(trace)
        lines |= {"PD"[int(name[-1])]: kept[:14] for name, kept in capture["logs"].items() if name.startswith("pair")}
        engines |= {each: facts for each, facts in capture["engines"].items() if not each.startswith("drill")}
    CAPTURED.mkdir(exist_ok=True)
    data = {"engines": engines, "arms": arms, "sent": sent, "logs": lines}
    rows = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items())
    (CAPTURED / f"{name}.json").write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")
    packed = json.dumps(times, separators=(",", ":")).encode()
    (CAPTURED / f"{name}-times.json.xz").write_bytes(lzma.compress(packed, preset=9))
    path = CAPTURED / "provenance.json"
    provenance = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    provenance[name] = about_capture(name, about, [capture.get("took_s") for _, capture in found])
    path.write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")


def about_capture(name: str, about: dict, took_s: list) -> dict:
    """The entry of provenance.json."""
    machine = about["machine"] if name == "gpu" else ["x86-64 virtual machine, 2 cores, shared with other work"]
    return {
        "machine": "; ".join(machine), "device": "cuda" if name == "gpu" else "cpu", "cores": about["cores"],
        "topology": about["topology"] if name == "gpu" else [], "date": about["date"], "versions": about["versions"],
        "model": "the shape of Llama-3-8B, random weights" if name == "gpu" else "models/pocket",
        "load": about["load"], "environment": about["environment"], "calls": len(took_s), "took_s": took_s,
        "commands": {
            each: f"{name}_run.py --out FOLDER, then collect.py {name} FOLDER"
            for each in (f"{name}.json", f"{name}-times.json.xz")
        },
        "edited": "times to a tenth of a millisecond; the first 32 tokens of each answer; 14 lines of a log at most",
    }  # fmt: skip


if __name__ == "__main__":
    collect(sys.argv[1], [Path(each) for each in sys.argv[2:]])
