"""Lab 05-06: one graph, one loop, one compilation, thirteen pieces. On any CPU; one fixture needs a C++ compiler."""

import importlib
import logging
import operator
import os
import shutil
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason='this lab needs torch: pip install -e ".[torch]"')

from course.fixtures import patience  # noqa: E402
from course.labs import ROOT, load  # noqa: E402

CACHE = ROOT / ".course" / "inductor"
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHE))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

importlib.import_module("torch._dynamo")  # some seconds, here and not in the first test
logging.getLogger("torch.__trace").disabled = True  # its compiler's diary would bury a failure

HERE = Path(__file__).resolve().parent
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
SIZES = (8, 9, 64, 1, 2, 1, 17)
ATTENTION = "lab0506::attention"

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(got, wanted, atol=0.0, why=""):
    """One comparison for all tests: shape, type, then every number; 0.0 means bit for bit."""
    assert tuple(got.shape) == tuple(wanted.shape), "the shape first: a comparison by difference would broadcast"
    assert got.dtype == wanted.dtype, "the type of the result"
    worst = (got.double() - wanted.double()).abs().max().item() if got.numel() else 0.0
    assert worst <= atol, f"the largest difference is {worst:.1e}{why}"


class Backend:
    """A backend that counts, for tests in which the learner's own is not the point."""

    def __init__(self):
        self.graphs, self.inputs = [], []

    def __call__(self, gm, inputs):
        self.graphs.append(gm)
        self.inputs.append(list(inputs))
        return gm.forward


@pytest.fixture(autouse=True)
def fresh():
    """Each test begins with no compiled code, and leaves Dynamo's settings as they were."""
    torch._dynamo.reset()
    before = torch._dynamo.config.get_hash()
    yield
    torch._dynamo.reset()
    assert torch._dynamo.config.get_hash() == before, "a global setting of Dynamo was changed and stays so"


@pytest.fixture(scope="module")
def given():
    return load(HERE / "given.py")


@pytest.fixture(scope="module")
def model(given):
    """(graph, inputs, expected output) of the six-layer model, traced once."""
    torch._dynamo.reset()
    backend, net, x = Backend(), given.Model(), normal(5, 16)
    with torch.no_grad():
        out = torch.compile(net, backend=backend)(x)
    assert len(backend.graphs) == 1
    return backend.graphs[0], backend.inputs[0], out


@pytest.fixture(scope="module")
def compiled(impl):
    """(result, eager result, program) of norm_gate through the learner's recorder and inductor, compiled once."""
    try:
        subprocess.run([COMPILER or "no compiler", "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("inductor's CPU code needs a C++ compiler that can be run here: install g++ or clang++")
    x, w, threads = normal(64, 384), normal(384, seed=1), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        recorder, result, programs = through_inductor(impl, x, w)
    except Exception as error:
        if "ImportError" not in str(error) or not CACHE.is_dir():
            raise
        shutil.rmtree(CACHE)  # a run that was stopped in the middle has left half a library there
        recorder, result, programs = through_inductor(impl, x, w)
    finally:
        torch.set_num_threads(threads)
    assert len(recorder.graphs) == len(programs) == 1, "one graph, one program"
    return result, impl.norm_gate(x, w), programs[0]


def through_inductor(impl, x, w):
    """(recorder, result, programs) of norm_gate, compiled by the learner's recorder."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    recorder = impl.Recorder()
    return recorder, *run_and_get_code(torch.compile(impl.norm_gate, backend=recorder), x, w)


# ---- the graph -----------------------------------------------------------------------------------------------------


def test_recorder_sees_every_graph(impl):
    recorder, x, w = impl.Recorder("eager"), normal(4, 8), normal(8, seed=1)
    assert (recorder.graphs, recorder.inputs) == ([], [])
    same(torch.compile(impl.norm_gate, backend=recorder)(x, w), impl.norm_gate(x, w))
    assert len(recorder.graphs) == len(recorder.inputs) == 1
    assert isinstance(recorder.graphs[0], torch.fx.GraphModule)
    assert all(a is b for a, b in zip(recorder.inputs[0], (x, w), strict=True)), "the inputs as they came"
    torch.compile(impl.broken, backend=recorder)(normal(3, 5), normal(5))
    assert len(recorder.graphs) == len(recorder.inputs) == 3, "two more, in order of arrival"
    calls = [str(node.target) for node in recorder.graphs[1].graph.nodes if node.op.startswith("call")]
    assert any("tanh" in name for name in calls), "what comes before the break arrives first"
    assert impl.Recorder("eager").graphs == [], "each recorder has lists of its own"
    given = [x, w]
    impl.Recorder("eager")(recorder.graphs[0], given)
    assert len(given) == 2 and given[0] is x and given[1] is w, "the list of inputs is Dynamo's, and stays as it is"


def test_recorder_refuses(impl):
    for inner in ("fast", "", "Inductor", None):
        with pytest.raises(ValueError, match=f"^inner must be 'inductor' or 'eager', got {inner!r}$"):
            impl.Recorder(inner)


def written_out(x, w, eps=1e-6):
    """norm_gate in float64."""
    x, w = x.double(), w.double()
    h = x / torch.sqrt((x * x).mean(dim=1, keepdim=True) + eps) * w
    half = h.shape[1] // 2
    return h[:, :half] / (1 + torch.exp(-h[:, :half])) * h[:, half:]


def test_norm_gate(impl):
    x, w = normal(5, 12), normal(12, seed=1)
    before = x.clone(), w.clone()
    same(impl.norm_gate(x, w), written_out(x, w).float(), 2e-6)
    same(impl.norm_gate(x, w, eps=4.0), written_out(x, w, 4.0).float(), 2e-6)
    same(impl.norm_gate(x * 1e-4, w), written_out(x * 1e-4, w).float(), 2e-6)
    assert torch.equal(x, before[0]) and torch.equal(w, before[1]), "the arguments stay as they are"


def test_norm_gate_in_half_precision(impl):
    """300 squared is infinite in fp16. And the quotient is rounded before it meets w."""
    x, w = 300 * normal(40, 64, dtype=torch.float16), normal(64, seed=1, dtype=torch.float16)
    out = impl.norm_gate(x, w)
    same(out, written_out(x, w).half(), 4e-2)
    h = x.float()
    h = (h / torch.sqrt(h.pow(2).mean(dim=1, keepdim=True) + 1e-6)).half() * w
    gates = torch.nn.functional.silu(h[:, :32]), h[:, :32] * torch.sigmoid(h[:, :32])  # two ways to round SiLU
    share = min((out != gate * h[:, 32:]).double().mean().item() for gate in gates)
    assert share < 0.05, f"{share:.0%} of the numbers differ in the last bit: round the quotient, then multiply by w"


@pytest.mark.timeout(patience(120))
def test_compiled_equals_eager(impl, compiled):
    result, eager, _ = compiled
    same(result, eager, 5e-6)


# ---- the generated code --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("norm_gate", {"kernels": 1, "loops": 3, "buffers": 2}),
        ("relu", {"kernels": 1, "loops": 1, "buffers": 1}),
        ("between", {"kernels": 2, "loops": 2, "buffers": 2}),
    ],
)
def test_read_cpp(impl, name, wanted):
    """Three programs that inductor wrote: a norm with its gate, relu(x) * 2 + 1, a product with something around it."""
    assert impl.read_cpp((HERE / "captured" / f"{name}.txt").read_text(encoding="utf-8")) == wanted


def test_read_cpp_of_two_programs(impl):
    """One after the other in one text: everything adds up."""
    texts = {n: (HERE / "captured" / f"{n}.txt").read_text(encoding="utf-8") for n in ("norm_gate", "between", "relu")}
    assert impl.read_cpp(texts["norm_gate"] + texts["between"]) == {"kernels": 3, "loops": 5, "buffers": 4}
    assert impl.read_cpp(texts["relu"] + texts["relu"]) == {"kernels": 2, "loops": 2, "buffers": 2}


def test_read_cpp_of_a_program_without_kernels(impl):
    code = "def call(self, args):\n    for x in args:\n        buf0 = empty_strided_cpu((3, ), (1, ), torch.float32)\n"
    assert impl.read_cpp(code) == {"kernels": 0, "loops": 0, "buffers": 1}
    assert impl.read_cpp("") == {"kernels": 0, "loops": 0, "buffers": 0}


@pytest.mark.timeout(patience(120))
def test_nine_calls_become_one_kernel(impl, compiled):
    found = impl.read_cpp(compiled[2])
    assert (found["kernels"], found["buffers"]) == (1, 2), "one kernel; a column between, and the result"


# ---- compilations --------------------------------------------------------------------------------------------------


def test_the_break_is_cured(impl):
    """`broken` is two graphs, whichever side its branch takes; the cure is one, for both sides."""
    cases = [(normal(6, 8), sign * normal(6, 8).abs().mean(0)) for sign in (1.0, -1.0)]
    cases.append((normal(6, 8, seed=3).abs(), normal(8, seed=4).abs()))
    cases.append((normal(6, 8, seed=3).abs(), -normal(8, seed=4).abs()))
    zero = torch.zeros(6, 8)
    zero[0, :2] = torch.tensor([1.0, -1.0])
    cases.append((zero, torch.ones(8)))  # a sum of exactly 0
    sides = {bool(torch.tanh(x * w).sum() > 0) for x, w in cases}
    assert sides == {True, False}, "the cases take both sides"
    for x, w in cases:
        same(impl.cured(x, w), impl.broken(x, w))
    lost = normal(6, 8)
    lost[0, 0] = float("nan")  # its sum is NaN, which is not more than 0
    got, want = (torch.nan_to_num(f(lost, torch.ones(8)), 7.0) for f in (impl.cured, impl.broken))
    assert torch.equal(got, want), "one NaN in x: the branch is not taken, and 47 of 48 numbers tell"
    before, after = Backend(), Backend()
    torch.compile(impl.broken, backend=before)(*cases[0])
    assert len(before.graphs) == 2, "the branch asks for a value, so Dynamo runs what it has and begins again"
    whole = torch.compile(impl.cured, backend=after, fullgraph=True)
    for x, w in cases:
        same(whole(x, w), impl.broken(x, w))
    assert len(after.graphs) == 1, f"compiled {len(after.graphs)} times: the two sides of the branch share a graph"


def first_extra(counts):
    """Where a sequence of counts goes beyond 1, in words."""
    at = next((size for size, n in zip(SIZES, counts, strict=True) if n > 1), None)
    why = "Sizes 0 and 1 are always taken for constants; mark_dynamic does not change that"
    return f"the second time at T = {at}. {why}" if at == 1 else f"the second time at T = {at}"


def test_how_often_it_compiles(impl):
    """Your prediction, and then the count, with `mark_dynamic` on each batch."""
    guess, counts = impl.predicted_compiles(), []
    backend, w = Backend(), normal(8)
    compiled = torch.compile(impl.norm_gate, backend=backend)
    for rows in SIZES:
        x = normal(rows, 8)
        torch._dynamo.mark_dynamic(x, 0)
        compiled(x, w)
        counts.append(len(backend.graphs))
    side = "too few" if guess < counts[-1] else "too many" if guess > counts[-1] else "as counted"
    why = "for each batch, ask which assumption about its size the compiled code makes"
    assert side == "as counted", f"your prediction is {guess} for {SIZES}: {why}"


def serve_all(impl, function, sizes):
    """Counts of compilations after each batch; every result is compared with eager."""
    backend, w, counts, seen = Backend(), normal(8, seed=1), [], []
    compiled = torch.compile(function, backend=backend)

    def watched(x, w):
        seen.append(len(x))
        return compiled(x, w)

    for rows in sizes:
        x = normal(rows, 8, seed=rows)
        before, calls = x.clone(), len(seen)
        same(impl.serve(watched, x, w), function(x, w), 1e-6)
        assert len(seen) == calls + 1, f"`compiled` was called {len(seen) - calls} times for a batch of {rows}"
        assert rows <= seen[-1] <= 2 * rows, (
            f"{seen[-1]} rows computed for {rows}: at least these, at most twice as many"
        )
        assert torch.equal(x, before), "the batch stays as it is"
        counts.append(len(backend.graphs))
    return counts


def test_serve_compiles_once(impl):
    counts = serve_all(impl, impl.norm_gate, SIZES)
    assert counts[-1] == 1, f"compiled {counts[-1]} times for {', '.join(map(str, SIZES))}: {first_extra(counts)}"


@pytest.mark.parametrize("sizes", [(1, 2, 1, 100, 3), (2, 1)])
def test_serve_in_another_order(impl, sizes):
    """The batch of one comes first, and another function is served."""

    def scaled(x, w):
        return torch.tanh(x * w)[:, :4] - x[:, 4:]

    counts = serve_all(impl, scaled, sizes)
    assert counts[-1] == 1, f"compiled {counts[-1]} times for {sizes}"


# ---- the cut -------------------------------------------------------------------------------------------------------


def op_of(node):
    """The name of the op that a node calls, or None."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target.name()
    return target._qualified_op_name if isinstance(target, torch._ops.OpOverloadPacket) else None


def pieces_of(split):
    """For each piece, in order: the list of what it calls, ops by name."""
    assert isinstance(split, torch.fx.GraphModule)
    found = []
    for node in split.graph.nodes:
        if node.op == "call_module":
            calls = [n for n in getattr(split, node.target).graph.nodes if n.op not in ("placeholder", "output")]
            found.append([op_of(n) or str(n.target) for n in calls])
        elif node.op == "call_function":
            assert node.target is operator.getitem, f"{node.target} stands outside of all pieces"
        else:
            assert node.op in ("placeholder", "output"), f"{node.op} {node.target} stands outside of all pieces"
    return found


def cut(impl, gm, inputs, ops):
    """Splits and checks what holds for every split: the same result, clean pieces, gm as it was. Gives the pieces."""
    before, wanted = str(gm.graph), gm(*inputs)
    asked = set(ops)
    split, cuts = impl.split_at(gm, asked)
    assert asked == set(ops) and str(gm.graph) == before, "gm and ops stay as they are"
    assert split is not gm, "a new graph module"
    pieces = pieces_of(split)
    assert cuts == {i for i, calls in enumerate(pieces) if set(calls) & set(ops)}, (
        "the numbers of the pieces with an op"
    )
    mixed = [i for i in cuts if not set(pieces[i]) <= set(ops)]
    assert mixed == [], f"pieces {mixed} hold an op and something else: what follows attention stands in its piece"
    got = split(*inputs)
    for a, b in zip(*([x] if isinstance(x, torch.Tensor) else list(x) for x in (got, wanted)), strict=True):
        same(a.detach(), b.detach())
    return pieces


def test_six_layers_are_thirteen_pieces(impl, model):
    gm, inputs, out = model
    pieces = cut(impl, gm, inputs, {ATTENTION})
    assert len(pieces) == 13, f"{len(pieces)} pieces, expected 13: seven, and one attention between each two"
    assert [calls == [ATTENTION] for calls in pieces] == [i % 2 == 1 for i in range(13)], "one call a piece"
    same(impl.split_at(gm, {ATTENTION})[0](*inputs)[0].detach(), out)


def test_nothing_to_cut(impl, model):
    gm, inputs, _ = model
    assert len(cut(impl, gm, inputs, set())) == 1


def graph(*ops):
    """x -> op -> op -> ...: a graph by hand; each op is a function of one tensor, or attention."""
    made = torch.fx.Graph()
    value = made.placeholder("x")
    for op in ops:
        value = made.call_function(op, (value,) * (3 if "attention" in str(op) else 1))
    made.output(value)
    return torch.fx.GraphModule(torch.nn.Module(), made)


def test_neighbours(impl, given):
    """Two calls in a row, in one piece or in two; first and last in the graph; as overload and as packet."""
    packet, overload = torch.ops.lab0506.attention, torch.ops.lab0506.attention.default
    x = [normal(4, 16)]
    for ops, few, many in [
        ((overload, overload, torch.relu), 2, 3),
        ((torch.relu, packet, overload, torch.tanh), 3, 4),
        ((torch.relu, torch.tanh, packet), 2, 2),
        ((packet,), 1, 1),
        ((torch.relu, packet, torch.relu, torch.tanh, packet, torch.relu), 5, 5),
    ]:
        found = len(cut(impl, graph(*ops), x, {ATTENTION}))
        assert few <= found <= many, f"{found} pieces, expected {few} to {many}"


def test_a_write_keeps_its_place(impl, given):
    """One piece reads x, a later one writes into it, and no value passes between them: the order is all there is."""
    made, aten = torch.fx.Graph(), torch.ops.aten
    x = made.placeholder("x")
    value = made.call_function(torch.relu, (x,))
    first = made.call_function(torch.ops.lab0506.attention.default, (value, value, value))
    written = made.call_function(aten.add_.Tensor, (x, 1.0))
    made.output((first, made.call_function(torch.tanh, (written,))))
    gm = torch.fx.GraphModule(torch.nn.Module(), made)
    wanted, got = gm(normal(4, 16)), impl.split_at(gm, {ATTENTION})[0](normal(4, 16))
    for a, b in zip(got, wanted, strict=True):
        same(a, b, why=": the pieces run in another order than the nodes of the graph, and one of them writes into x")


def test_whole_names(impl, given):
    """aten::relu is not aten::relu6, and two names may be asked for at once."""
    aten = torch.ops.aten
    gm, x = graph(aten.relu6.default, torch.tanh, aten.relu.default, torch.sin, aten.relu6), [normal(4, 16)]
    assert len(cut(impl, gm, x, {"aten::relu"})) == 3
    assert len(cut(impl, gm, x, {"aten::relu6"})) == 3
    assert len(cut(impl, gm, x, {"aten::relu6", "aten::relu"})) == 5


def test_what_is_absent(impl, model):
    gm, _, _ = model
    before = str(gm.graph)
    with pytest.raises(ValueError, match=r"^lab0506::attentoin is not in the graph$"):
        impl.split_at(gm, {ATTENTION, "lab0506::attentoin", "zeta::op"})
    assert str(gm.graph) == before
