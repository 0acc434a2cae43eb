"""The website's search, in the worker that the pages start: queries as somebody types them, and what is meant.

One worker in one browser, so it runs with the site: ``SITE_BROWSER=1 pytest course/tests/test_site_search.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from course.tests.site_fixtures import Site, needs, the_site

pytestmark = [pytest.mark.maintainer, *needs]
TOP = 3
GUIDE = {number: f"phase-{number:02}-" for number in range(20)}
"""A page of a phase is named by its beginning."""
MEANT = {
    "how to add a model": "docs/add-a-model/",
    "add model": "docs/add-a-model/",
    "min_p": "GLOSSARY/#min-p",
    "min p": "GLOSSARY/#min-p",
    "head-of-line blocking": "GLOSSARY/#head-of-line-blocking",
    "head of line": "GLOSSARY/#head-of-line-blocking",
    "head-": "GLOSSARY/#head-of-line-blocking GLOSSARY/#head-size GLOSSARY/#attention-head",
    "KV block": "GLOSSARY/#kv-block",
    "PagedAttention p": "GLOSSARY/#pagedattention",
    "paged attention": "GLOSSARY/#pagedattention",
    "why is a request preempted": "GLOSSARY/#preemption",
    "what is preemption": "GLOSSARY/#preemption",
    "what is a token?": "GLOSSARY/#token",
    "prefil": "GLOSSARY/#prefill",
    "prefill vs decode": "GLOSSARY/#prefill GLOSSARY/#decode phase-00-foundations/labs/lab-04-prefill-vs-decode/",
    "schedul": "GLOSSARY/#scheduler phase-03-continuous-batching-scheduler/",
    "max_num_batched_tokens": "GLOSSARY/#token-budget docs/tuning/ phase-03-continuous-batching-scheduler/",
    "gpu_memory_utilization": "docs/parity/ docs/gpu/ phase-02-paged-attention/",
    "enable_prefix_caching": "GLOSSARY/#prefix-caching phase-02-paged-attention/",
    "repetition_penalty": "GLOSSARY/#penalty phase-09-sampling-and-decoding-algorithms/",
    "top_k": "GLOSSARY/#top-k",
    "top_p": "GLOSSARY/#top-p",
    "logit_bias": "GLOSSARY/#logit-bias",
    "tensor_parallel_size": "GLOSSARY/#tp phase-10-distributed-inference/ docs/distributed/",
    "kv_transfer_config": "docs/disaggregation/ docs/parity/",
    "num_computed_tokens": "GLOSSARY/#number-of-computed-tokens",
    "BlockPool": "GLOSSARY/#block-pool phase-02-paged-attention/",
    "FreeKVCacheBlockQueue": "phase-02-paged-attention/ GLOSSARY/#free-queue",
    "cuda grap": "GLOSSARY/#cuda-graph",
    "speculative deco": "GLOSSARY/#speculative-decoding",
    "flash attention": "GLOSSARY/#flashattention",
    "chunked prefill": "GLOSSARY/#chunked-prefill",
    "how big is the kv cache": "phase-00-foundations/ GLOSSARY/#kv-cache GLOSSARY/#kv-bytes-per-token",
    "how do I grade a class": "docs/grading/",
    "grading": "docs/grading/",
    "vllm serve": "docs/serving/",
    "tool calls": "docs/parsers/ phase-16-serving-apis-and-parsers/",
    "json schema": "GLOSSARY/#json-schema docs/structured-outputs/",
    "structured outputs": "docs/structured-outputs/ GLOSSARY/#structured-output",
    "run on a gpu": "docs/gpu/",
    "two machines": "docs/distributed/",
    "plugin": "docs/plugins/ GLOSSARY/#platform-plugin",
    "where do I start": "#start docs/evening/ docs/paths/",
    "setup": "SETUP/",
    "troubleshooting": "SETUP/",
    "command not found: course": "SETUP/",
    "LAB_IMPL=foo is not known": "SETUP/",
    "not enough KV cache memory": "SETUP/ docs/tuning/",
    "real_vllm skip": "SETUP/",
    "continuous batching": "GLOSSARY/#continuous-batching",
    "Little's law": "GLOSSARY/#little-s-law GLOSSARY/#littles-law",
    "rejection sampling": "GLOSSARY/#rejection-sampling",
    "interview questions scheduler": "phase-03-continuous-batching-scheduler/INTERVIEW/",
    "lab 03-04": "phase-03-continuous-batching-scheduler/labs/lab-04-preemption/",
    "upstream tests": "docs/upstream-tests/",
}
"""Query -> the places that a person means by it, any of which will do: an address of the site, or the beginning of one
for a phase, whose pages explain the same thing at length."""
HARD = ('"', '"kv block', "+", "-", "~", "^", "*", "a:b", "title:", "head-", "head -", "x^", "x~", "~2", "+kv -",
        "\\", "(", "[", "^2 ~1", ":", "text: +", "kv:block^", "é", "块", "KV 缓存", "👾", "<b>", "&amp;", "'",
        "--enable-", "=", " ", "head~x", "head^x", "a ^b")  # fmt: skip
"""What lunr's language reads as a mark, or what is no word at all."""
WORKER = """
const [address, own, done] = arguments;
(async () => {
  const app = JSON.parse(document.getElementById("__config").textContent).search.split("?");
  const theme = JSON.stringify(`${address}assets/javascripts/workers/${app[1]}`);
  const named = "`assets/javascripts/workers/${self.location.search.slice(1)}`"; // a blob's address has no end
  const text = await (await fetch(app[0])).text();
  const wrapped = text.replace(named, theme);
  const warn = "self.console.warn = (...said) => postMessage({ type: 9, data: said.join(' ') });";
  const file = new Blob([warn, own ? wrapped : `importScripts(${theme})`], { type: "text/javascript" });
  const worker = new Worker(URL.createObjectURL(file)), waiting = [];
  window.failures = wrapped === text ? ["the worker does not name the theme's as it did"] : [];
  worker.onerror = (event) => { failures.push(event.message); waiting.shift()?.(null); };
  worker.onmessage = ({ data }) => (data.type === 9 ? failures.push(data.data) : waiting.shift()?.(data));
  const tell = (type, data) => new Promise((go) => { waiting.push(go); worker.postMessage({ type, data }); });
  const index = await (await fetch(`${address}search/search_index.json`)).json();
  await tell(0, { config: index.config, docs: index.docs, options: { suggest: false } });
  window.ask = async (query) => (await tell(2, query)).data.items;
  done(true);
})();
"""
"""The worker of the page, with an ear for what it warns of; ``own`` is false for the theme's alone."""
ASK = """
const [queries, done] = [arguments[0], arguments[1]];
(async () => {
  const found = {};
  const places = (group) => group.map((one) => one.location).slice(0, 2);
  for (const query of queries) found[query] = (await ask(query)).slice(0, 3).map(places);
  done(found);
})();
"""


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Site:
    """A page with the search's worker, and the index in it."""
    site = the_site(request.config)
    site.driver.set_script_timeout(300)
    site.open("")
    site.driver.execute_async_script(WORKER, site.address, True)
    return site


def found(site: Site, queries: list[str]) -> dict[str, Any]:
    """Query -> its first three pages, each with the two places in it that come first."""
    answers: dict[str, Any] = {}
    for at in range(0, len(queries), 25):  # the driver waits two minutes for an answer, on a busy machine too
        answers |= site.driver.execute_async_script(ASK, queries[at : at + 25])
    return answers


def test_what_is_meant_is_among_the_first_three(site: Site) -> None:
    assert len(MEANT) >= 50
    wrong = {}
    for query, pages in found(site, list(MEANT)).items():
        places = [place for page in pages for place in page[: 2 if page[0].startswith("GLOSSARY/") else 1]]
        meant = MEANT[query].split()
        if not any(place == one or ("#" not in one and place.startswith(one)) for place in places for one in meant):
            wrong[query] = pages
    assert wrong == {}


def test_no_mark_and_no_half_word_is_an_error_in_the_worker(site: Site) -> None:
    typed = {query[:end] for query in (*MEANT, *HARD) for end in range(1, len(query) + 1)}
    assert len(typed) > 500
    found(site, sorted(typed))
    assert site.run("return window.failures") == []


def test_a_bare_mark_is_an_error_of_the_theme_alone(site: Site) -> None:
    """The ear hears: without the words of ours a word with a tilde in it is an error."""
    assert "head~x" in HARD
    site.driver.execute_async_script(WORKER, site.address, False)
    found(site, ["head~x"])
    assert any("Invalid query" in said for said in site.run("return window.failures"))
