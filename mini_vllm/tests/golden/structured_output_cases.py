"""What the recorder of structured outputs asks, and the tests replay: `structured-output-cases.json`.

MASKS: (kind, schema, regex or grammar), compared with xgrammar's masks along random legal paths. REQUESTS:
`StructuredOutputsParams` that real vLLM answered on models/pocket, each for every prompt.
"""

import json
from pathlib import Path

_CASES = json.loads((Path(__file__).parent / "structured-output-cases.json").read_text(encoding="utf-8"))
MASKS, PROMPTS, REQUESTS, MAX_TOKENS = (_CASES[key] for key in ("masks", "prompts", "requests", "max_tokens"))
