"""Your parser on pocket's stream: `python demo.py [QUESTION]` (LAB_IMPL=solution for the reference).

A grammar makes pocket write a call, which it was never trained to. Each line is one step of the engine: what came, what
your parser held back, and what it said.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402

CALL = r'<tool_call>\{"name": "get_(weather|time)", "arguments": \{"city": "(Paris|Oslo|Ghent)"\}\}</tool_call>'


def main() -> None:
    from mini_vllm import LLM, RequestOutputKind, SamplingParams
    from mini_vllm.structured_outputs_params import StructuredOutputsParams

    lab = load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")
    parser, engine = lab.StreamingToolParser(), LLM(str(HERE.parents[2] / "models" / "pocket")).llm_engine
    form = StructuredOutputsParams(regex=f"List<int> it is[.] {CALL} Wait[.]")
    params = SamplingParams(
        temperature=0.0, max_tokens=90, structured_outputs=form, output_kind=RequestOutputKind.DELTA
    )
    question = " ".join(sys.argv[1:]) or "What is the weather in Oslo?"
    engine.add_request("demo", f"<|user|>\n{question}<|end|>\n<|assistant|>\n", params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            text = output.outputs[0].text
            print(f"{text!r:14}  {'  '.join(f'{kind}: {value!r}' for kind, value in parser.feed(text))}")
    print(f"{'the end':14}  {parser.finish()}")


if __name__ == "__main__":
    main()
