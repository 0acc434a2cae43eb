"""The playgrounds of the website (docs/play): what they recorded is what the engine gives today, and what their modules
compute is what `mini_vllm` computes. Node runs the modules; `play.mjs` takes jobs and prints their results."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import shutil
import subprocess
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.labs import ROOT
from mini_vllm import decode_e4m3, quantize_fp8, quantize_grouped, quantize_per_channel
from mini_vllm.layers.quantization.nf4 import dequantize_nf4, quantize_nf4
from mini_vllm.layers.quantization.utils.fp8_utils import encode_e4m3

pytestmark = pytest.mark.maintainer

PLAY = ROOT / "docs" / "play"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs node (apt install nodejs)")


def node(*jobs: dict[str, Any]) -> list[Any]:
    """The results of jobs, in their order; see `play.mjs`."""
    command = [NODE or "node", str(ROOT / "course/tests/play.mjs"), str(PLAY)]
    done = subprocess.run(
        command, input=json.dumps(jobs), capture_output=True, encoding="utf-8", timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def call(module: str, function: str, *args: Any) -> dict[str, Any]:
    return {"module": module, "call": function, "args": args}


@lru_cache
def recorder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("play_record", PLAY / "record.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@lru_cache
def committed(name: str) -> dict[str, Any]:
    return json.loads((PLAY / "data" / f"{name}.json").read_text(encoding="utf-8"))


@lru_cache
def spec() -> dict[str, Any]:
    return json.loads((ROOT / "models/pocket/tokenizer.json").read_text(encoding="utf-8"))


NAMES = sorted(path.stem for path in (PLAY / "data").glob("*.json"))


def announced() -> dict[str, int]:
    """Name -> number of questions, as core.js has it for the score."""
    table = re.search(r"PLAYGROUNDS = {(.*?)\n};", (PLAY / "core.js").read_text(encoding="utf-8"), re.S)
    assert table is not None
    return {name: int(n) for name, n in re.findall(r"(\w+): {.*?questions: (\d+)", table[1])}


@pytest.mark.parametrize("name", NAMES)
def test_recordings_are_of_this_engine(name: str) -> None:
    found = (PLAY / "data" / f"{name}.json").read_text(encoding="utf-8")
    assert found == recorder().text_of(name), "run python docs/play/record.py"


def test_each_playground_is_recorded_listed_and_embedded() -> None:
    assert sorted(announced()) == NAMES == sorted(recorder().RECORDINGS)
    page = (ROOT / "docs/play.md").read_text(encoding="utf-8")
    guides = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("phase-*/00-guide.md"))
    for name in NAMES:
        marker = f"<!-- widget: play-{name} -->"
        assert page.count(marker) == 1 and guides.count(marker) == 1, name


def test_files_are_short_and_ask_nobody_else() -> None:
    for path in [*PLAY.glob("*.js"), *PLAY.glob("*.css"), *PLAY.rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 300, path
        assert not re.search(r"(?<!www\.w3\.org/2000/svg)https?://(?!www\.w3\.org/2000/svg)", text), path


@needs_node
def test_truths_are_the_engines() -> None:
    """Each answer that a module computes is the one that the engine gave; guesses that are offered contain it."""
    jobs = [
        {"name": name, "data": committed(name) | ({"spec": spec()} if name == "tokenizer" else {})} for name in NAMES
    ]
    found = dict(zip(NAMES, node(*jobs), strict=True))
    assert {name: len(questions) for name, questions in found.items()} == announced()
    for name, questions in found.items():
        assert {q["id"]: q["answer"] for q in questions} == committed(name)["answers"], name
        for q in questions:
            if q["options"] is None:
                assert q["number"]["min"] <= q["answer"] <= q["number"]["max"], q
                assert isinstance(q["answer"], int), q
            else:
                assert q["options"].count(q["answer"]) == 1 and len(set(q["options"])) == len(q["options"]) >= 2, q
            assert len(q["why"]) > 60 and q["ask"].strip().endswith("?"), q


@needs_node
def test_merges_are_the_engines() -> None:
    """The pair that is merged, its rank and the pieces, in every step of random words."""
    made = recorder().recordings.tokenizer
    rng, tokenizer = random.Random(14), made.BPETokenizer.from_folder(made.POCKET)
    letters = "etaoin shrdlu" * 3 + "KVLM.,0123é象🐘\n"
    words = ["".join(rng.choice(letters) for _ in range(rng.randint(1, 14))) for _ in range(150)]
    words += re.findall(r"\S+", (ROOT / "README.md").read_text(encoding="utf-8"))[:150]
    words = [word for word in words if tokenizer._split(word) == [word]]
    [found] = node(call("tokenizer", "stepsOf", spec(), words))
    assert len(words) > 120 and sum(map(len, found)) > 350
    assert found == [made.steps(tokenizer, word) for word in words]


def some_floats(seed: int, count: int = 600) -> Any:
    """float32 of all sizes that the small formats tell apart, ties and ends of their ranges among them."""
    rng = np.random.default_rng(seed)
    wide = rng.standard_normal(count) * np.exp2(rng.integers(-30, 20, count))
    ties = (rng.integers(0, 64, count) + 0.5) * np.exp2(rng.integers(-14, 8, count).astype(float))
    ends = [
        0.0,
        -0.0,
        448.0,
        464.0,
        465.0,
        -1e9,
        2.0**-10,
        2.0**-9,
        65504.0,
        65519.0,
        65520.0,
        1e38,
        5.9e-8,
        3e-8,
        2.0**-126,
    ]
    return np.concatenate([wide, ties, ends]).astype(np.float32)


@needs_node
def test_codes_are_the_engines_to_the_last_bit() -> None:
    made, x = recorder().recordings.bits, some_floats(6)
    values = [float(v) for v in x]
    names = ("fp8 e4m3", "bf16", "fp16")
    encoded = node(*(call("bits", "encodeAll", values, name) for name in names))
    with np.errstate(over="ignore", invalid="ignore"):
        want = [encode_e4m3(x), made.bf16(x), x.astype(np.float16).view(np.uint16)]
    for name, ours, theirs in zip(names, encoded, want, strict=True):
        assert ours == theirs.tolist(), name
    codes = [list(range(256)), *(np.random.default_rng(7).integers(0, 65536, 800).tolist() for _ in range(2))]
    decoded = node(*(call("bits", "decodeAll", c, name) for c, name in zip(codes, names, strict=True)))
    meant = [
        decode_e4m3(np.array(codes[0], np.uint8)),
        made.from_bf16(np.array(codes[1], np.uint16)),
        np.array(codes[2], np.uint16).view(np.float16),
    ]
    for ours, theirs in zip(decoded, meant, strict=True):
        assert np.array_equal(np.array([float(v) for v in ours]), theirs, equal_nan=True)


@needs_node
def test_groups_are_the_engines_to_the_last_bit() -> None:
    rng = np.random.default_rng(8)
    groups = [rng.standard_normal(8) * 10.0 ** rng.integers(-4, 4) for _ in range(150)]
    groups += [np.zeros(8), np.array([3.5, 0.25, -0.25, 0.75, 1.25, -1.75, 2.5, 3.0])]
    kinds = ("int8", "int4", "NF4", "fp8")
    found = node(*(call("bits", "roundTrip", group.tolist(), kind) for group in groups for kind in kinds))
    for i, group in enumerate(groups):
        row, single = group[None], group[None].astype(np.float32)
        codes8, scale8 = quantize_per_channel(row)
        codes4, scale4 = quantize_grouped(row, 8)
        nf4, absmax = quantize_nf4(single, 8)
        fp8, scale = quantize_fp8(single)
        want = [(codes8, scale8), (codes4, scale4), (nf4, absmax), (fp8, scale)]
        for ours, (codes, scales) in zip(found[4 * i : 4 * i + 4], want, strict=True):
            assert ours["codes"] == codes[0].tolist()
            assert ours["scale"] == float(np.ravel(scales)[0])
        assert np.allclose(found[4 * i + 2]["back"], dequantize_nf4(nf4, absmax)[0], rtol=1e-6)


@needs_node
def test_running_softmax_is_the_engines() -> None:
    """m exactly, the rest to the last digits: exp is not the same in browsers and in numpy."""
    made, rng, jobs, want = recorder().recordings.softmax, np.random.default_rng(4), [], []
    for size in (1, 2, 3, 4, 6, 12) * 12:
        scores = (rng.standard_normal(12) * 10 ** rng.uniform(-1, 2)).tolist()
        values, order = rng.standard_normal(12).tolist(), rng.permutation(12 // size).tolist()
        for forget in (False, True):
            jobs.append(call("softmax", "run", scores, values, size, order, forget))
            want.append(made.run(scores, values, size, order, forget))
    for ours, theirs in zip(node(*jobs), want, strict=True):
        assert [state["m"] for state in ours] == [state["m"] for state in theirs]
        for key in ("which", "correction", "denom", "acc"):
            assert np.allclose([s[key] for s in ours], [s[key] for s in theirs], rtol=1e-12, atol=1e-14), key


@needs_node
def test_attention_is_the_engines() -> None:
    made, rng = recorder().recordings.attention, np.random.default_rng(5)
    cases = []
    for _ in range(120):
        n, d = rng.integers(1, 9), rng.integers(1, 9)
        q, keys, values = rng.standard_normal(d) * 3, rng.standard_normal((n, d)), rng.standard_normal((n, 3))
        cases.append((q.tolist(), keys.tolist(), values.tolist()))
    for ours, case in zip(node(*(call("attention", "attend", *case) for case in cases)), cases, strict=True):
        want = made.attend(*case)
        for key in ("weights", "output"):
            assert np.allclose(ours[key], want[key], rtol=1e-12, atol=1e-13)


@needs_node
def test_routing_blocks_and_traffic_are_the_engines() -> None:
    made, rng = recorder().recordings.router, np.random.default_rng(7)
    cases = []
    for _ in range(120):
        tokens, experts = int(rng.integers(1, 20)), int(rng.integers(2, 12))
        logits = np.round(rng.standard_normal((tokens, experts)) * 3, int(rng.integers(0, 4)))  # equal scores too
        cases.append((logits.tolist(), int(rng.integers(1, experts + 1)), int(rng.integers(1, 17))))
    for ours, case in zip(node(*(call("router", "route", *case) for case in cases)), cases, strict=True):
        want = made.align(*case)
        assert np.allclose(ours.pop("weights"), want.pop("weights"), rtol=1e-12)
        assert ours == want
    shapes = rng.integers(1, 300, (80, 5)).tolist()
    found = node(*(call("router", "traffic", *shape) for shape in shapes))
    assert found == [made.tiles().tiled_traffic(*shape) for shape in shapes]


@needs_node
def test_the_pool_acts_as_the_engines() -> None:
    """After every act of every scene: block tables, reference counts, the free queue's order, what can be found."""
    data = committed("paged")
    jobs = [call("paged", "states", [*scene["before"], scene["act"]]) for scene in data["scenes"].values()]
    assert node(*jobs) == list(data["states"].values())
    assert sum(map(len, data["states"].values())) >= 20


@needs_node
def test_the_encoder_caches_books_are_the_engines() -> None:
    """Encoded, forgotten, held, free: kept again from the plans alone."""
    recorded = committed("encoder")
    kept = ("encoded", "evicted", "held", "free", "after")
    wanted = [{name: step[name] for name in kept} for step in recorded["steps"]]
    small = [{**step, "held": sorted(step["held"]), "after": sorted(step["after"])} for step in wanted]
    [found] = node(call("encoder", "replay", recorded))
    assert [{**step, "held": sorted(step["held"]), "after": sorted(step["after"])} for step in found] == small
    assert any(step["evicted"] for step in found) and any(step["held"] != step["after"] for step in found)
