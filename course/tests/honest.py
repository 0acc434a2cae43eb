# ruff: noqa: E501
"""Right submissions in other styles: ``STYLES`` write a lab's reference anew, ``HANDS`` are functions written by hand.
``ways`` puts as many of them as fit into one file: functions by hand, and each of the others in a style of its own."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Collection

from course.labs import COURSE, Lab, functions, stub_message, tomllib

FUTURE = "from __future__ import annotations\n"


Style = Callable[..., str]
"""(lab, text, names): the text, by default the reference, with the functions of these names in another style, by default
all that the learner writes at the top level."""


def solution(lab: Lab) -> str:
    """The reference."""
    return (lab.folder / "solution.py").read_text(encoding="utf-8")


def _unwritten(lab: Lab) -> set[str]:
    starter = ast.parse((lab.folder / "starter.py").read_text(encoding="utf-8"))
    return {name for name, node in functions(starter) if stub_message(node) is not None}


def _begun(lab: Lab, text: str | None, names: Collection[str] | None) -> tuple[ast.Module, set[str]]:
    tree = ast.parse(solution(lab) if text is None else text)
    return tree, _unwritten(lab) if names is None else set(names)


def wrapped(top: str, around: Callable[[str, str, str], str]) -> Style:
    """A style in which the learner's functions of the top level are called ``_f_by_hand``, and ``around(name, call,
    parameters)`` is the body of what bears their name."""

    def style(lab: Lab, text: str | None = None, names: Collection[str] | None = None) -> str:
        tree, wanted = _begun(lab, text, names)
        body: list[ast.stmt] = []
        for node in tree.body:
            body.append(node)
            if not isinstance(node, ast.FunctionDef) or node.name not in wanted or node.decorator_list:
                continue
            new = ast.parse(f"def {node.name}():\n    pass").body[0]
            assert isinstance(new, ast.FunctionDef)
            new.args, new.returns = node.args, node.returns
            args = [a.arg for a in [*node.args.posonlyargs, *node.args.args]]
            given = [*args, *([f"*{node.args.vararg.arg}"] if node.args.vararg else [])]
            given += [f"{a.arg}={a.arg}" for a in node.args.kwonlyargs]
            given += [f"**{node.args.kwarg.arg}"] if node.args.kwarg else []
            call = f"_{node.name}_by_hand({', '.join(given)})"
            inner = ast.parse(around(node.name, call, ", ".join(args))).body
            helpers = [n for n in inner if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
            new.body = [n for n in inner if n not in helpers]
            node.name = f"_{node.name}_by_hand"
            body += [*helpers, new]
        text = ast.unparse(ast.Module(body, []))
        return text.replace(FUTURE, FUTURE + top, 1) if FUTURE in text else top + text

    return style


def generators(lab: Lab, text: str | None = None, names: Collection[str] | None = None) -> str:
    """Each function that returns is a generator that yields, and its caller takes the next value."""
    tree, wanted = _begun(lab, text, names)
    for node in list(tree.body):
        if isinstance(node, ast.FunctionDef) and node.name in wanted and not node.decorator_list:
            if any(
                isinstance(n, (ast.Yield, ast.YieldFrom, ast.Lambda, ast.FunctionDef))
                for n in ast.walk(node)
                if n is not node
            ):
                continue
            name, args = node.name, ", ".join(a.arg for a in node.args.args)
            gives = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(node))
            if not gives or node.args.kwonlyargs or node.args.vararg or node.args.kwarg:
                continue
            caller = f"def {name}():\n    return next(_{name}_steps({args}), None)"
            new = ast.parse(caller).body[0]
            assert isinstance(new, ast.FunctionDef)
            new.args, new.returns, node.returns = node.args, node.returns, None
            node.name = f"_{name}_steps"
            _Yields().visit(node)
            tree.body.insert(tree.body.index(node) + 1, new)
    return ast.unparse(ast.fix_missing_locations(tree))


class _Yields(ast.NodeTransformer):
    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        return [ast.Expr(ast.Yield(node.value)), ast.Return(None)]


CLASS = """
class _Run_{name}:
    '''One call of {name}, with what it was asked.'''

    def __init__(self, *asked):
        self.asked, self._answer = asked, None

    def __len__(self):
        return len(self.asked)

    def __iter__(self):
        return iter(self.asked)

    def __contains__(self, one):
        return any(one is other for other in self.asked)

    def __repr__(self):
        return f"{{type(self).__name__}}({{len(self)}} arguments)"

    @property
    def answer(self):
        return self._answer

    def keep(self, answer):
        self._answer = answer
        return self
return _Run_{name}({args}).keep({call}).answer
"""

STYLES: dict[str, Style] = {
    "classes": wrapped("", lambda name, call, args: CLASS.format(name=name, call=call, args=args)),
    "generators": generators,
    "match": wrapped(
        "",
        lambda name, call, args: (
            f"match (answer := {call}):\n    case None:\n        return None\n"
            "    case True | False:\n        return answer\n    case _:\n        return answer\n"
        ),
    ),
    "decorators": wrapped(
        "import functools\nfrom collections import Counter\nfrom time import perf_counter\n_calls, _seconds = Counter(), {}\ndef _counted(fn):\n    @functools.wraps(fn)\n"
        "    def inner(*args, **kwargs):\n        start = perf_counter()\n        try:\n            return fn(*args, **kwargs)\n        finally:\n"
        "            _calls[fn.__name__] += 1\n            _seconds[fn.__name__] = perf_counter() - start\n    return inner\n",
        lambda name, call, args: (
            f"counted = _counted(_{name}_by_hand)\nreturn {call.replace(f'_{name}_by_hand', 'counted')}\n"
        ),
    ),
    "dataclasses": wrapped(
        "import dataclasses\nfrom typing import Any, Generic, TypeVar\n_T = TypeVar('_T')\n@dataclasses.dataclass(frozen=True, slots=True)\n"
        "class _Answer(Generic[_T]):\n    value: _T\n    notes: list[str] = dataclasses.field(default_factory=list)\n\n"
        "    def __post_init__(self) -> None:\n        object.__setattr__(self, 'notes', [*self.notes, 'made'])\n",
        lambda name, call, args: (
            f"made: _Answer[Any] = _Answer({call})\nassert made.notes == ['made']\nreturn dataclasses.replace(made, notes=[]).value\n"
        ),
    ),
    "queues": wrapped(
        "import heapq\nimport itertools\nfrom collections import OrderedDict, defaultdict, deque\nfrom operator import itemgetter\n",
        lambda name, call, args: (
            f"line = deque([{call}], maxlen=1)\nkept = OrderedDict()\nkept['answer'] = line.popleft()\n"
            "by_rank = defaultdict(list)\nby_rank[0].append(kept)\nheap = []\nheapq.heappush(heap, (0, 0))\n"
            "chosen = next(itertools.chain.from_iterable(by_rank.values()))\nkept.move_to_end('answer')\nreturn itemgetter('answer')(chosen)\n"
        ),
    ),
    "errors": wrapped(
        "from contextlib import contextmanager, nullcontext, suppress\nclass _Told(ValueError):\n    def __str__(self):\n        return super().__str__()\n"
        "@contextmanager\ndef _section(title):\n    yield '{}: {:>3d}'.format(title, len(title))\n",
        lambda name, call, args: (
            f"with suppress(KeyError), nullcontext():\n    {{}}['no']\nwith _section('{name}') as title:\n    assert title\n"
            f"try:\n    answer = {call}\nexcept _Told as error:\n    raise ValueError(*error.args) from None\nelse:\n    return answer\n"
        ),
    ),
    "lambdas": wrapped(
        "from functools import cache, lru_cache, partial, reduce\n@cache\ndef _twice(n):\n    return 2 * n\n@lru_cache(maxsize=None)\ndef _same(n):\n    return n\n",
        lambda name, call, args: (
            f"later = lambda: {call}\nassert _twice(_same(1)) == 2 and reduce(lambda a, b: a + b, [1, 2]) == 3\n"
            "ask = partial(lambda ready: ready())\nreturn [value for value in map(ask, [later])][-1]\n"
        ),
    ),
    "named": wrapped(
        "from collections import namedtuple\nfrom enum import Enum, auto\nfrom typing import NamedTuple\n_Pair = namedtuple('_Pair', 'key answer')\n"
        "class _Step(Enum):\n    ASK = auto()\n    DONE = 'done'\nclass _Row(NamedTuple):\n    step: _Step\n    pair: _Pair\n",
        lambda name, call, args: (
            f"row = _Row(_Step.DONE, _Pair(key={name!r}, answer={call}))\nstep, (key, answer) = row\n"
            "assert row._replace(step=_Step.ASK).step is _Step.ASK and step.value == 'done' and row.pair.key == key and _Step.ASK.name == 'ASK'\n"
            "return row.pair._asdict()['answer']\n"
        ),
    ),
    "ordered": wrapped(
        "import bisect\nfrom dataclasses import dataclass\nfrom functools import total_ordering\n@total_ordering\nclass _Rank:\n    __slots__ = ('rank', 'name')\n\n"
        "    def __init__(self, rank, name):\n        self.rank, self.name = rank, name\n\n    def __eq__(self, other):\n"
        "        return isinstance(other, _Rank) and (self.rank, self.name) == (other.rank, other.name)\n\n    def __lt__(self, other):\n"
        "        if not isinstance(other, _Rank):\n            return NotImplemented\n        return (self.rank, self.name) < (other.rank, other.name)\n\n"
        "    def __hash__(self):\n        return hash(self.rank)\n",
        lambda name, call, args: (
            f"ranks = sorted([_Rank(2, 'b'), _Rank(1, 'a')])\nassert min(ranks) <= ranks[0] and bisect.bisect_left(ranks, ranks[1]) == 1\nreturn {call}\n"
        ),
    ),
    "typed": wrapped("", lambda name, call, args: f"answer: object = {call}\nreturn answer\n"),
}


def by_hand(lab: Lab, text: str) -> str:
    """The reference with functions in the place of its own; what ``text`` has besides stands before them."""
    tree, mine = ast.parse(solution(lab)), ast.parse(text).body
    names = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    new = {n.name: n for n in mine if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name in names}
    others = [n for n in mine if n not in new.values()]
    first = next(i for i, n in enumerate(tree.body) if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name in new)
    body = [new.get(getattr(n, "name", ""), n) for n in tree.body]
    return ast.unparse(ast.Module([*body[:first], *others, *body[first:]], [])) + "\n"


def _defined(text: str) -> set[str]:
    """Names that the top level of a text binds, imports left out: two texts may import the same."""
    found = {n.name for n in ast.parse(text).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    assigned = [n for n in ast.parse(text).body if isinstance(n, (ast.Assign, ast.AnnAssign))]
    return found | {n.id for each in assigned for n in ast.walk(each) if isinstance(n, ast.Name)}


def _together(lab: Lab) -> list[dict[str, str]]:
    """What is written by hand for a lab, in as few files as can be: no two texts of one file bind the same name."""
    files: list[dict[str, str]] = [{}]
    for name, text in HANDS.items():
        if lab.name.startswith(name[:5]):
            free = [f for f in files if not any(_defined(text) & _defined(other) for other in f.values())]
            if not free:
                files.append({})
            (free or files[-1:])[0][name] = text
    return files


@functools.cache
def ways(lab: Lab) -> dict[str, tuple[str, list[str]]]:
    """Files for a lab by their names, and the ways of writing in each: functions written by hand ("02-02 ..."), and
    the other functions of the top level, each in another style ("classes first_fit")."""
    found, wanted = {}, _unwritten(lab)
    for number, hands in enumerate(_together(lab)):
        text = by_hand(lab, "".join(hands.values())) if hands else solution(lab)
        taken = {name for each in hands.values() for name in _defined(each)}
        top = [n for n in ast.parse(solution(lab)).body if isinstance(n, ast.FunctionDef) and not n.decorator_list]
        rest = [n.name for n in top if n.name in wanted - taken]
        first = sum(map(ord, lab.name)) + number
        by_style: dict[str, list[str]] = {}
        for at, name in enumerate(rest):
            by_style.setdefault(list(STYLES)[(first + at) % len(STYLES)], []).append(name)
        for style, names in by_style.items():
            text = STYLES[style](lab, text, names)
        found[f"{lab.name} {number}"] = text, [*hands, *(f"{s} {n}" for s, names in by_style.items() for n in names)]
    return found


HANDS = {
    "00-01 a class that holds the cache": '''
class _Cache:
    """K and V of the tokens so far."""

    def __init__(self, tokens):
        self.work, self.tokens, self._pairs = KVWork(), [], []
        for tok in tokens:
            self.push(tok)

    def __len__(self):
        return len(self._pairs)

    def __iter__(self):
        yield from self._pairs

    def push(self, tok):
        self.tokens.append(tok)
        self._pairs.append(compute_kv(tok, len(self), self.work))


def generate_with_cache(prompt, n_new):
    check_arguments(prompt, n_new)
    cache = _Cache(prompt)
    while len(cache) < len(prompt) + n_new:
        cache.push(next_token(cache.tokens[-1], list(cache)))
    return cache.tokens, cache.work.count
''',
    "00-01 one loop for each step": """
from functools import partial


def generate_no_cache(prompt, n_new):
    check_arguments(prompt, n_new)
    work, tokens = KVWork(), [*prompt]
    charge = partial(compute_kv, work=work)
    for _step in range(n_new):
        pairs = []
        for position in range(len(tokens)):
            pairs += [charge(tokens[position], position)]
        tokens += [next_token(tokens[-1], pairs)]
    return tokens, work.count
""",
    "00-02 products of a list": """
import math
from fractions import Fraction


def kv_bytes_per_token(num_layers, num_kv_heads, head_dim, dtype_bytes=2):
    return math.prod([2, num_layers, num_kv_heads, head_dim, dtype_bytes])


def max_concurrent_seqs(gpu_bytes, weight_bytes, per_seq):
    if per_seq < 1:
        raise ValueError("per_seq must be at least 1 byte, got {}".format(per_seq))
    return max(0, math.floor(Fraction(gpu_bytes - weight_bytes, per_seq)))
""",
    "00-02 a match over what the file says": """
def kv_bytes_of_config(config, dtype_bytes=2):
    match config:
        case {"num_key_value_heads": int(kv_heads)}:
            pass
        case {"num_attention_heads": int(kv_heads)}:
            pass
    match config.get("head_dim"):
        case None:
            head_dim = config["hidden_size"] // config["num_attention_heads"]
        case int(head_dim):
            pass
    return kv_bytes_per_token(config["num_hidden_layers"], kv_heads, head_dim, dtype_bytes)
""",
    "00-03 top-k by a heap": """
import heapq


def apply_top_k(logits, k):
    scores = np.array(logits, dtype=np.float64)
    if not 0 < k < len(scores):
        return scores
    *_, kth = heapq.nlargest(k, scores.tolist())
    return np.where(scores >= kth, scores, -np.inf)
""",
    "00-03 top-p in a loop": """
from itertools import accumulate


def apply_top_p(logits, p):
    scores = np.array(logits, dtype=np.float64)
    if p >= 1:
        return scores
    probs = softmax(scores).tolist()
    order = sorted(range(len(probs)), key=probs.__getitem__, reverse=True)
    kept = set()
    for index, mass in zip(order, accumulate(probs[i] for i in order)):
        kept.add(index)
        if mass >= p:
            break
    scores[[i for i in range(len(probs)) if i not in kept]] = float("-inf")
    return scores
""",
    "00-03 a softmax of logarithms": """
def softmax(logits: np.ndarray) -> np.ndarray:
    scores = np.asarray(logits, dtype=float)
    with np.errstate(divide="ignore"):
        return np.exp(scores - np.logaddexp.reduce(scores))
""",
    "01-05 the two ends apart": """
def _ended(request, status, reason=None):
    request.status = status
    if reason is not None:
        request.stop_reason = reason
    return True


def check_stop(request, max_model_len):
    params, full = request.sampling_params, request.num_tokens >= max_model_len
    if not full and request.num_output_tokens < params.min_tokens:
        return False
    match request.output_token_ids[-1]:
        case end if end == params.eos_token_id:
            return _ended(request, RequestStatus.FINISHED_STOPPED)
        case end if end in (params.stop_token_ids or ()):
            return _ended(request, RequestStatus.FINISHED_STOPPED, end)
    if full or request.num_output_tokens >= request.max_tokens:
        return _ended(request, RequestStatus.FINISHED_LENGTH_CAPPED)
    return False
""",
    "01-05 any over the stream": """
def run_until_stop(request, token_stream, max_model_len):
    def took(token_id):
        request.append_output_token_ids(token_id)
        return check_stop(request, max_model_len)

    request.status = RequestStatus.RUNNING
    any(map(took, token_stream))
    return request
""",
    "02-02 gaps from a generator": """
from itertools import pairwise


def _gaps(total_slots, taken):
    edges = [(0, 0), *sorted(taken), (total_slots, 0)]
    for (begin, size), (after, _) in pairwise(edges):
        yield begin + size, after - begin - size


def first_fit(total_slots, taken, length):
    return next((start for start, room in _gaps(total_slots, taken) if room >= length), None)
""",
    "02-02 ceilings by divmod": """
def _ceil(a, b):
    whole, rest = divmod(a, b)
    return whole + bool(rest)


def paged_admit(total_slots, block_size, used_lens):
    free, admitted, wasted = total_slots // block_size, [], 0
    for used in used_lens:
        if (need := _ceil(used, block_size)) <= free:
            free -= need
            admitted.append(used)
            wasted += need * block_size - used
    return Result(admitted=len(admitted), rejected=len(used_lens) - len(admitted), wasted=wasted)
""",
    "02-03 a set beside the list": """
from math import ceil


def serve_one(free, hits, num_new):
    held = frozenset(hits)
    rest = list(filter(lambda block: block not in held, free))
    if len(rest) < num_new:
        raise ValueError("%d blocks wanted, %d are free" % (num_new, len(rest)))
    new, left = rest[:num_new], rest[num_new:]
    table = [*hits, *new]
    return table, [*left, *reversed(table)]
""",
    "02-06 heads in a loop": """
def paged_attention(q, k_cache, v_cache, block_table, seq_len, block_size):
    slots = build_slot_mapping(block_table, block_size, 0, seq_len)
    keys, values = np.take(k_cache, slots, axis=0), np.take(v_cache, slots, axis=0)
    group, out = len(q) // keys.shape[1], np.empty_like(q)
    for head, query in enumerate(q):
        of = head // group
        weights = softmax(keys[:, of] @ query * (len(query) ** -0.5))
        out[head] = weights @ values[:, of]
    return out
""",
    "02-06 a loop over slots": """
def write_kv(k_cache, v_cache, new_k, new_v, slot_mapping):
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        k_cache[slot], v_cache[slot] = new_k[row], new_v[row]
""",
    "03-03 a prefix by takewhile": """
from itertools import starmap, takewhile
from operator import eq


def common_prefix(a, b):
    return sum(1 for _ in takewhile(bool, starmap(eq, zip(a, b))))
""",
    "03-03 sums of a comprehension": """
def predict(prompts, block_size):
    def best(i):
        return max([0, *(common_prefix(prompts[i], other) for other in prompts[:i])])

    return [expected_hits(len(prompts[i]), best(i), block_size) for i in range(len(prompts))]
""",
    "04-04 a tree of merges": """
from functools import reduce


def merge_partials(parts):
    found = list(parts)
    total = reduce(merge_two, found) if found else None
    if total is None or np.isneginf(total.m):
        raise ValueError("nothing to attend to")
    return total.acc / total.denom
""",
    "05-02 a table of modes": """
def launches_per_step(mode, num_layers, ops_per_layer, ops_per_split=2):
    ways = {
        "NONE": lambda: num_layers * ops_per_layer,
        "PIECEWISE": lambda: num_layers + 1 + num_layers * ops_per_split,
        "FULL": lambda: 1,
    }
    try:
        return ways[mode]()
    except KeyError:
        raise ValueError(f"mode must be NONE, PIECEWISE or FULL, got {mode!r}") from None
""",
    "05-02 a fraction for the crossover": """
from fractions import Fraction
from math import floor


def crossover(num_ops, capture_cost_ops=None):
    capture = num_ops if capture_cost_ops is None else capture_cost_ops
    if num_ops <= 1:
        return 1 if capture < num_ops else None
    return max(1, 1 + floor(Fraction(capture - 1, num_ops - 1)))
""",
    "06-01 rows one by one": """
def quantize_per_channel(W):
    codes, scales = np.zeros(W.shape, dtype=np.int8), np.ones(len(W), dtype=W.dtype)
    for i, row in enumerate(W):
        if (largest := np.max(np.abs(row))) > 0:
            scales[i] = largest / INT8_MAX
        codes[i] = np.clip(np.round(row / scales[i]), -INT8_MAX, INT8_MAX)
    return codes, scales
""",
    "06-05 levels by bisection": """
from bisect import bisect_left


def pack_nf4(codes):
    high, low = codes[:, ::2], codes[:, 1::2]
    return np.bitwise_or(np.left_shift(high, 4), low)
""",
    "07-01 counts by hand": """
from collections import Counter


def sort_by_expert(ids, num_experts):
    flat = [int(e) for e in np.ravel(ids)]
    counts = Counter(flat)
    order = sorted(range(len(flat)), key=lambda i: (flat[i], i))
    starts = [0]
    for expert in range(num_experts):
        starts.append(starts[-1] + counts[expert])
    return np.asarray(order, dtype=int), np.asarray(starts)
""",
    "09-04 a stream kept for each request": """
class PerRequestSampler:
    def __init__(self):
        self.streams = {}

    def sample(self, rows, logits):
        if np.ndim(logits) != 2 or len(logits) != len(rows):
            raise ValueError(
                f"logits must have a row for each of the {len(rows)} requests, got shape {np.shape(logits)}"
            )
        names = [row.request_id for row in rows]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise ValueError(f"request {name!r} stands twice in this step")
        tokens = []
        for row, scores in zip(rows, np.asarray(logits, dtype=np.float64)):
            if row.temperature == 0:
                tokens.append(int(np.argmax(scores)))
                continue
            race = np.log(self.noise(row, len(scores))) - scores / row.temperature
            tokens.append(int(np.argmin(race)))
        return tokens

    def noise(self, row, size):
        if row.request_id not in self.streams:
            start = row.seed if row.seed is not None else int(np.random.default_rng().integers(2**60))
            self.streams[row.request_id] = (start, np.random.default_rng(start), 0)
        start, stream, place = self.streams[row.request_id]
        if row.num_output_tokens < place:
            stream, place = np.random.default_rng(start), 0
        for _ in range(row.num_output_tokens - place):
            stream.exponential(size=size)
        self.streams[row.request_id] = (start, stream, row.num_output_tokens + 1)
        return stream.exponential(size=size)

    def finish(self, request_id):
        if request_id in self.streams:
            del self.streams[request_id]

    def __len__(self):
        return len(self.streams)
""",
    "09-05 top-p by a full sort": """
def _keep_top_p(weights, p):
    upwards = np.argsort(weights, axis=1, kind="stable")
    mass = np.cumsum(np.take_along_axis(weights, upwards, axis=1), axis=1)
    dropped = (mass <= (1 - p[:, None]) * mass[:, -1:]) & (p < 1)[:, None]
    dropped[:, -1] = False
    gone = np.zeros_like(dropped)
    np.put_along_axis(gone, upwards, dropped, axis=1)
    weights[gone] = 0.0
""",
    "07-01 experts in their turn": """
def moe_forward_reference(x, experts, ids, w):
    return np.stack([
        sum(w[t, j] * expert_mlp(x[t : t + 1], *experts[e])[0] for j, e in enumerate(row)) for t, row in enumerate(ids)
    ])
""",
}
HANDS |= tomllib.loads((COURSE / "tests" / "hands.toml").read_text(encoding="utf-8"))
"""Lab and idea -> functions in the place of the reference's own; more of them in `hands.toml`."""
