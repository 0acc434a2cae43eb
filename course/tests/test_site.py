"""What the website adds to the pages, without building it; the data of the interactive pictures; `--trace`."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from course.labs import ROOT
from course.pages.markdown import read
from course.pages.shape import all_pages
from mini_vllm import LLMEngine, SamplingParams
from mini_vllm.core.sched.trace import record
from mini_vllm.entrypoints.cli.main import app

pytestmark = pytest.mark.maintainer

WIDGETS = ROOT / "docs" / "widgets"


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def render() -> ModuleType:
    return script(ROOT / "docs" / "site_render.py")


@pytest.fixture(scope="module")
def recorder() -> ModuleType:
    return script(WIDGETS / "record.py")


def committed(name: str) -> Any:
    return json.loads((WIDGETS / "data" / name).read_text(encoding="utf-8"))


def test_citations_become_links(render: ModuleType) -> None:
    html = "<p><code>upstream/vllm/a.py:81</code> and <code>:90-95</code></p><p><code>:7</code></p>"
    found = re.findall(r'href="([^"]+)"', render.link_citations(html))
    assert found == [f"https://github.com/vllm-project/vllm/blob/v0.22.1/vllm/a.py#{at}" for at in ("L81", "L90-L95")]


def test_excerpts_say_where_they_stand(render: ModuleType) -> None:
    text = render.link_excerpts("<!-- upstream: vllm/a.py:3-9 -->\n```python\nx\n```")
    assert "/blob/v0.22.1/vllm/a.py#L3-L9" in text and text.endswith("```python\nx\n```")
    assert "\n\n```" in text, "a blank line must stand before the fence"


def test_tags_become_pills(render: ModuleType) -> None:
    html = render.tag_pills("<h1>Lab <code>[GPU-REQ]</code></h1><p><code>[other]</code></p>")
    assert 'class="tag tag-gpu-req"' in html and "<code>[other]</code>" in html


def test_tooltips_for_links_and_for_the_first_bare_use(render: ModuleType) -> None:
    terms = {
        "kv cache": ("kv-cache", "Keys & values."),
        "token budget": ("token-budget", "A limit."),
        "step": ("step", "x"),
    }
    html = '<p><a href="../GLOSSARY/#kv-cache">KV</a>, <code>token budget</code>, a Token budget, a token budget</p>'
    shown = render.add_tooltips(html, terms, "../GLOSSARY/")
    assert 'href="../GLOSSARY/#kv-cache" title="Keys &amp; values."' in shown
    term = '<a class="term" href="../GLOSSARY/#token-budget" title="A limit.">Token budget</a>'
    assert shown.count('class="term"') == 1 and term in shown
    quiet = "<math><mtext>token budget</mtext></math><h2>token budget</h2>"
    assert render.add_tooltips(quiet, terms, "../GLOSSARY/") == quiet


def test_code_in_tables_may_be_broken_at_its_joints(render: ModuleType) -> None:
    html = "<code>a.b</code><table><tr><td><code>sampler.Sampler</code> a.b <code>x</code></td></tr></table>"
    shown = render.breakable(html)
    assert "sampler.<wbr>Sampler" in shown and shown.count("<wbr>") == 1


def test_what_the_site_shows_beside_a_page_is_not_said_twice(render: ModuleType) -> None:
    text = "# A\n\n[Course home](../README.md) · next: [B](b.md)\n\n## Contents\n\n[x](#x)\n\n---\n\n## X\nprevious: x"
    assert render.without_doubles(text) == "# A\n\n\n---\n\n## X\nprevious: x"
    left = [
        page.name
        for page in ROOT.glob("phase-*/00-guide.md")
        if "## Contents" in render.without_doubles(read(page).text)
    ]
    assert left == []


def test_drawings_keep_their_lines_and_programs_do_not(render: ModuleType) -> None:
    block = '<div class="language-text highlight"><pre><span></span><code>{}</code></pre></div>'
    drawn = render.fitted(block.format("┌──┐\n│ &lt;│\n"))
    assert drawn.startswith('<div class="language-text highlight art" style="--w:4"><pre>')
    assert render.fitted(block.format("a -> b\nx")) == block.format("a -> b\nx")


@pytest.fixture(scope="module")
def phone() -> ModuleType:
    return script(ROOT / "docs" / "site_phone.py")


def test_pictures_are_links_to_themselves_and_as_wide_as_their_words_ask(phone: ModuleType) -> None:
    html = phone.figures('<p><img alt="a" src="../img/x.svg"> <img alt="b" src="y.png"></p>', "somewhere/else/")
    link = '<a class="figure" style="--least:640px" href="../img/x.svg"><img alt="a" src="../img/x.svg"></a>'
    assert html == f'<p>{link} <img alt="b" src="y.png"></p>', "a drawing that does not say is as wide as before"
    drawing = "phase-08-speculative-decoding/img/rollback.svg"
    assert phone.least_width(ROOT / drawing) == 810, "900 across, its smallest letters 10"
    assert "--least:810px" in phone.figures(
        '<img src="../img/rollback.svg">', "phase-08-speculative-decoding/00-guide/"
    )


def test_rows_full_of_words_are_cards_on_a_phone(phone: ModuleType) -> None:
    table = (
        "<table><thead><tr><th>A</th><th>B &amp; <code>c</code></th><th>D</th></tr></thead><tbody>{}</tbody></table>"
    )
    full = table.format(f"<tr><td>1</td><td>{'word ' * 30}</td><td>3</td></tr>")
    card = phone.cards(full)
    assert "<table data-cards>" in card and card.count("data-label=") == 3
    assert re.findall('data-label="([^"]*)"', card) == ["A", "B &amp; c", "D"]
    for few in (
        table.format("<tr><td>1</td><td>2</td><td>3</td></tr>"),
        full.replace("<th>D</th>", "").replace("<td>3</td>", ""),
    ):
        assert phone.cards(few) == few


def test_a_page_loses_gaps_and_no_code(render: ModuleType) -> None:
    page = "<p>\n\n   a\n</p>\n  <pre>x\n\n  y</pre>\n\n<script>\n  1\n</script>"
    assert render.without_gaps(page) == "<p>\na\n</p>\n<pre>x\n\n  y</pre>\n<script>\n  1\n</script>"


def test_the_run_on_the_home_page_is_the_engines(recorder: ModuleType) -> None:
    assert recorder.fill_data() == committed("fill.json"), "run python docs/widgets/record.py"
    run = committed("fill.json")
    assert any(step.get("p") for step in run["steps"]) and any(step.get("c", {}).get("B") for step in run["steps"])


def test_parts_name_each_phase_once() -> None:
    from course.labs import tomllib

    parts = tomllib.loads((ROOT / "docs" / "parts.toml").read_text(encoding="utf-8"))["part"]
    assert sorted(number for part in parts for number in part["phases"]) == list(range(20))
    assert [page for part in parts for page in part["pages"] if not (ROOT / page).is_file()] == []


def test_all_figures_share_one_palette() -> None:
    from mini_vllm.utils import svg

    known = {svg.INK, svg.GREY, svg.GRID, svg.PREFILL, svg.DECODE, svg.WAIT, svg.LOST, *svg.SERIES, *svg.WORDS.values()}
    hues = set()
    for path in ROOT.glob("phase-*/img/*.svg"):
        for colour in re.findall(r"#[0-9a-f]{6}", path.read_text(encoding="utf-8")):
            red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
            pale = max(red, green, blue) > 0xC8 and min(red, green, blue) > 0x8F
            hues |= {(colour, path.name)} if colour not in known and not pale else set()
    assert hues == set(), "a strong colour that is none of mini_vllm/utils/svg.py"


def test_landmarks_are_named_once_each(render: ModuleType) -> None:
    nav = '<nav aria-label="Table of contents"></nav>'
    shown = render.name_landmarks(f'<div data-md-component="search" role="dialog">{nav}{nav}')
    assert 'role="dialog" aria-label="Search"' in shown
    assert shown.count("Table of contents") == shown.count("On this page") == 1
    assert render.name_landmarks(nav) == nav


def test_every_term_has_a_definition_to_show(render: ModuleType) -> None:
    terms = render.glossary()
    assert len(terms) > 200
    assert all(10 < len(text) <= render.MAX_TOOLTIP + 2 for _, text in terms.values())


def test_markers_become_pictures(render: ModuleType) -> None:
    text = render.place_widgets("a\n\n<!-- widget: scheduler | preemption -->\n\nb", "../")
    assert '<mv-scheduler data-scene="preemption">' in text and 'src="../widgets/scheduler.js"' in text
    assert render.place_widgets("nothing", "../") == "nothing"
    with pytest.raises(ValueError, match="widget 'clock' does not exist"):
        render.place_widgets("<!-- widget: clock -->", "../")


def test_every_marker_in_the_pages_is_known(render: ModuleType) -> None:
    scenes, found = committed("scheduler.json"), set()
    for path in all_pages():
        text = read(path).text
        render.place_widgets(text, "")
        found |= {match["name"] for match in render._MARKER.finditer(text)}
        assert {m["scene"] for m in render._MARKER.finditer(text) if m["scene"]} <= set(scenes)
        assert "```mermaid" not in text, f"{path}: the theme would load a script from the network; use an SVG"
    assert found == {*render.WIDGETS, *render.PLAYGROUNDS}


def test_labs_page_lists_every_lab_under_its_tag(render: ModuleType) -> None:
    titles = {f"{lab.phase}/labs/{lab.slug}": f"Lab {lab.name}" for lab in render.all_labs()}
    page = render.labs_page(titles)
    assert page.count("/README.md)") == len(titles)
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == list(render.TAG_WORDS)


def test_scheduler_recordings_are_of_this_engine(recorder: ModuleType) -> None:
    scenes = committed("scheduler.json")
    assert list(scenes) == list(recorder.SCENES)
    for name, scene in recorder.SCENES.items():
        assert recorder.scheduler_scene(scene) == scenes[name], "run python docs/widgets/record.py"


def test_scenes_show_what_they_promise() -> None:
    steps = {name: trace["steps"] for name, trace in committed("scheduler.json").items()}
    assert any(step["preempted"] for step in steps["preemption"])
    scenes = committed("scheduler.json")
    assert steps["preemption"][scenes["preemption"]["start"]]["preempted"] == ["C"]
    words = [
        "".join(p for s in scene["steps"] for ps in s["sampled"].values() for p in ps) for scene in scenes.values()
    ]
    assert not any("I do not know" in text for text in words), "the model is asked what it knows"
    assert any(hit for step in steps["prefix caching"] for hit in step["cached"].values())
    assert any(done < all_ for step in steps["chunked prefill"] for done, all_ in step["counters"].values())


def test_expected_numbers_are_pythons(recorder: ModuleType) -> None:
    assert json.loads(json.dumps(recorder.arithmetic_data())) == committed("arithmetic.json")
    data = committed("sampler.json")
    assert np.allclose(recorder.sampler_data()["logits"], data["logits"], atol=5e-3)
    top = np.array([token for token, _ in data["shown"]])
    for case in data["expected"]:
        logits = np.array(data["logits"])
        want = recorder.expected_sample(logits, case["knobs"], data["prompt_token_ids"], data["output_token_ids"], top)
        assert json.loads(json.dumps({"knobs": case["knobs"], **want})) == case


CHECK_LOGIC = """
const M = require(process.argv[1] + "/core.js"), data = (name) => require(process.argv[1] + "/data/" + name);
const a = data("arithmetic.json"), s = data("sampler.json"), wrong = [];
const near = (x, y, what) => { if (!(Math.abs(x - y) <= 1e-6 * Math.max(1, Math.abs(y)))) wrong.push([what, x, y]); };
for (const c of a.expected.capacity) {
  const given = { kvBytes: c.kv_bytes, weightBytes: c.weight_bytes, share: c.share, length: c.length };
  const r = M.capacity(a.models[c.model], a.gpus[c.gpu], given);
  near(r.perToken, c.per_token, "per token");
  for (const name of ["blocks", "tokens", "users"]) near(r[name], c[name], name);
}
for (const c of a.expected.roofline) {
  const given = { batch: c.batch, context: c.context, kvBytes: c.kv_bytes, weightBytes: c.weight_bytes };
  const r = M.roofline(a.models[c.model], a.gpus[c.gpu], given);
  for (const name of ["ridge", "intensity", "attainable"]) near(r[name], c[name], name);
  near(r.memoryTokensPerSecond, c.memory_tokens_per_second, "tokens/s");
}
for (const c of s.expected) {
  const r = M.samplerProbs(s.logits, c.knobs, s.prompt_token_ids, s.output_token_ids);
  if (r.greedy) near(r.token, c.token, "greedy");
  else {
    near(r.probs.filter((p) => p > 0).length, c.kept, "kept " + JSON.stringify(c.knobs));
    c.probs.forEach((p, i) => near(r.probs[s.shown[i][0]], p, "probability " + JSON.stringify(c.knobs)));
  }
}
for (const trace of Object.values(data("scheduler.json"))) M.checkTrace(trace);
const S = {};
new Function("window", require("fs").readFileSync(process.argv[1] + "/scheduler.js", "utf8"))(
  Object.assign(S, { MiniUI: { define() {}, number: String }, MiniVLLM: {} }));
const scene = data("scheduler.json").preemption;
const said = scene.steps.map((step, at) =>
  Object.assign(Object.create(S.MiniPlayer.prototype), { trace: scene, at, step }).sentence());
const lists = [s.expected, a.expected.capacity, a.expected.roofline];
console.log(JSON.stringify({ said, wrong, cases: lists.flat().length }));
"""


@pytest.mark.skipif(
    shutil.which("node") is None, reason="needs node (apt install nodejs); the browser test covers it too"
)
def test_javascript_agrees_with_python() -> None:
    done = subprocess.run(
        ["node", "-e", CHECK_LOGIC, str(WIDGETS)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["wrong"] == [] and result["cases"] == 16
    said = result["said"]
    assert any("C is back: 4 of its 13 tokens found again, 9 computed again." in text for text in said)
    assert any("A's last block was full: it takes block 10." in text for text in said)
    assert "" not in said


def test_recording_changes_nothing_and_ends() -> None:
    def run(recorded: bool) -> tuple[list[int], Any]:
        engine = LLMEngine(block_size=4, num_blocks=16)
        for name in "ab":
            engine.add_request(name, "hello there", SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True))
        request, steps = engine.scheduler.requests["b"], None
        if recorded:
            with record(engine) as trace:
                while engine.has_unfinished_requests():
                    engine.step()
            steps = trace.as_dict()["steps"]
            engine.add_request("c", "later", SamplingParams(max_tokens=1))
            engine.step()
            assert len(trace.steps) == len(steps), "steps after the block are not recorded"
        while engine.has_unfinished_requests():
            engine.step()
        return request.output_token_ids, steps

    tokens, _ = run(False)
    again, steps = run(True)
    assert tokens == again
    assert steps[1]["cached"] == {} and steps[0]["cached"] == {"a": 0, "b": 8}, "b hits the two full blocks of a"
    assert sum(sum(step["scheduled"].values()) for step in steps) == 2 * (11 + 8 - 1) - 8
    for step in steps:
        held = {block for table in step["tables"].values() for block in table}
        assert len(held) + step["num_free"] == 15 and not held & set(step["free"])
    assert steps[-1]["finished"] == {"a": "length", "b": "length"}


@pytest.mark.parametrize("options", [[], ["-E", "async_scheduling=true"], ["-p", "another"]])
def test_trace_option(options: list[str], tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    result = CliRunner().invoke(app, ["generate", "-m", "toy", "-p", "hi", "-n", "5", "--trace", str(file), *options])
    assert result.exit_code == 0, result.output
    trace = json.loads(file.read_text(encoding="utf-8"))
    assert trace["format"] == "mini-vllm-trace" and trace["version"] == 1
    sampled = [piece for step in trace["steps"] for pieces in step["sampled"].values() for piece in pieces]
    assert len(sampled) >= 5 and len(trace["requests"]) == 1 + options.count("-p")


def test_trace_to_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["generate", "-m", "toy", "-n", "2", "--trace", str(tmp_path / "no" / "t.json")])
    assert result.exit_code == 2 and "Traceback" not in result.output
