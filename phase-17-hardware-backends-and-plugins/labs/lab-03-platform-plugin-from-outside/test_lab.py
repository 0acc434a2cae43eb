"""Lab 17-03. Every wheel of these tests is a folder with a module and a dist-info, put in front of the path."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from course.labs import load

given = load(Path(__file__).resolve().parent / "given.py")

BOTH = {"acc": "acc", "bcc": "bcc"}
FINE = "CALLS = []\ndef acc():\n    CALLS.append('acc')\n    return 'wheel.Acc'\ndef bcc():\n    CALLS.append('bcc')\n"


@pytest.fixture
def site(tmp_path):
    """A folder for wheels, on the path."""
    with given.on_the_path(tmp_path):
        yield tmp_path


def there(answer="wheel.Acc"):
    """A register function whose device is there, and the list that grows with each call."""
    calls = []

    def register():
        calls.append(answer)
        return answer

    return register, calls


def ours(found):
    """Of what was found, the wheels of these tests: something else may be installed."""
    return sorted({"acc", "bcc", "bad", "lost"} & set(found))


def broken():
    raise OSError("no driver")


def absent():
    return None


def says(caplog, *words):
    """Whether one line at WARNING or above has all of these words."""
    lines = [r.getMessage() + str(r.exc_info or "") for r in caplog.records if r.levelno >= logging.WARNING]
    return any(all(word in line for word in words) for line in lines), lines


# ---- who is installed ----------------------------------------------------------------------------------------------


def test_your_predictions(impl):
    mine = impl.predicted_verdicts()
    assert sorted(mine) == sorted(given.CASES), f"got the cases {sorted(mine)}, expected {sorted(given.CASES)}"
    wrong = {case: said for case, said in mine.items() if said != given.verdict(case)}
    assert wrong == {}, (
        f"{len(mine) - len(wrong)} of 6 as vLLM answered, expected 6; not so: {wrong}. captured/resolve.json has the "
        "answers, and how often each register was called"
    )


@pytest.mark.parametrize(
    ("allow", "expected"),
    [
        (None, ["acc", "bcc"]), ("", []), ("acc", ["acc"]), ("acc,bcc", ["acc", "bcc"]), ("bcc,", ["bcc"]),
        (" , ", []), (" acc ,\tbcc", ["acc", "bcc"]),
    ],
)  # fmt: skip
def test_allow_list(impl, site, allow, expected):
    module = given.install(site, FINE, BOTH)
    found = impl.discover(given.GROUP, allow)
    assert ours(found) == expected, (
        f"allow list {allow!r} loaded {ours(found)}, expected {expected}: blanks around a comma are not part of a name"
    )
    for name in expected:
        function = found[name]
        assert function is getattr(sys.modules[module], name), (
            f"{name}: got {function!r}, expected the wheel's function"
        )
    assert expected == [] or sys.modules[module].CALLS == [], "discover only finds functions; it called one"


def test_a_part_of_a_name_is_no_name(impl, site):
    given.install(site, FINE, BOTH)
    for allow in ("ac", "accx", "xacc", "acc bcc"):
        try:
            found = impl.discover(given.GROUP, allow)
        except impl.PluginError:
            continue
        assert found == {}, f"allow list {allow!r} loaded {sorted(found)}, expected nothing: nobody is called so"


def test_another_group_is_not_ours(impl, site):
    given.install(site, FINE, BOTH)
    assert impl.discover("mini_vllm.nobodys") == {}, "an empty group: expected {}"
    assert ours(impl.discover()) == ["acc", "bcc"], "without arguments: the group of platforms, all of it"


def test_not_allowed_is_not_imported(impl, site):
    bad = given.install(site, "raise SystemExit('imported')\n", {"bad": "register"})
    given.install(site, FINE, BOTH)
    found, went = {}, ""
    try:
        found = impl.discover(given.GROUP, "acc")
    except SystemExit as error:
        went = f"{error}"
    assert (sorted(found), went) == (["acc"], ""), (
        f"got {sorted(found)} and SystemExit({went!r}), expected ['acc']: what is not allowed was imported all the same"
    )
    assert bad not in sys.modules, f"{bad} is not allowed, and was imported: an import runs its code"


def test_broken_import_is_said_and_skipped(impl, site, caplog):
    bad = given.install(site, "raise ImportError('libacc.so: cannot open')\n", {"bad": "register"})
    lost = given.install(site, "", {"lost": "register"})
    old = given.install(site, "raise OSError('driver too old')\n", {"old": "register"})
    given.install(site, FINE, BOTH)
    found, went = {}, ""
    try:
        found = impl.discover()
    except (ImportError, AttributeError, OSError) as error:
        went = repr(error)
    assert (ours(found), went) == (["acc", "bcc"], ""), (
        f"got {sorted(found)} and {went or 'no error'}, expected ['acc', 'bcc']: one broken wheel is no reason to stop"
    )
    for name, module, why in (("bad", bad, "libacc.so"), ("lost", lost, "register"), ("old", old, "too old")):
        said, lines = says(caplog, name, f"{module}:register", why)
        assert said, f"expected a warning with {name!r}, '{module}:register' and {why!r}, got {lines}"


def test_a_typo_in_the_list_is_said(impl, site, caplog):
    given.install(site, FINE, BOTH)
    decided, refused, found = impl.decisions()["unknown"], "", {}
    assert decided in ("warn", "refuse"), f"decisions()['unknown']: got {decided!r}, expected 'warn' or 'refuse'"
    try:
        found = impl.discover(given.GROUP, "Acc,bcc")
    except impl.PluginError as error:
        refused = str(error)
    said, lines = says(caplog, "Acc", "acc", "bcc")
    if decided == "warn":
        assert (said, sorted(found)) == (True, ["bcc"]), (
            f"you decided to warn: got {sorted(found)} and the lines {lines}, expected ['bcc'] and a line with 'Acc' "
            "and the names that there are"
        )
    else:
        assert "Acc" in refused and "acc" in refused, (
            f"you decided to refuse: got {refused!r}, expected 'Acc' and 'acc'"
        )
    caplog.clear()
    impl.discover(given.GROUP, "acc,bcc")
    assert not says(caplog)[1], f"both names are known: got the lines {says(caplog)[1]}, expected none"


def test_only_a_broken_one_was_allowed(impl, site, caplog):
    given.install(site, "raise ImportError('libacc.so: cannot open')\n", {"bad": "register"})
    given.install(site, FINE, BOTH)
    decided, refused, found = impl.decisions()["broken"], "", None
    assert decided in ("go on", "refuse"), f"decisions()['broken']: got {decided!r}, expected 'go on' or 'refuse'"
    assert len(impl.decisions()["why"].split()) >= 8, "decisions()['why']: expected a sentence, for whoever comes later"
    try:
        found = impl.discover(given.GROUP, "bad")
    except impl.PluginError as error:
        refused = str(error)
    expected = ({}, False) if decided == "go on" else (None, True)
    assert (found, "bad" in refused) == expected, (
        f"you decided to {decided}: got {found} and the error {refused!r}, expected "
        f"{'nothing found, and a log line' if decided == 'go on' else 'a PluginError that names bad'}"
    )
    said, lines = says(caplog, "bad")
    assert refused or said, f"expected a line with 'bad', got {lines}"
    assert not says(caplog, "bad", "acc", "bcc")[0], f"bad is broken, and a line calls it unknown: {lines}"
    assert sorted(impl.discover(given.GROUP, "bad,acc")) == ["acc"], "beside another one it is logged and left out"


# ---- who has a device ----------------------------------------------------------------------------------------------


def test_outside_beats_inside(impl):
    (outside, _), (inside, _) = there("wheel.Acc"), there("ours.Cpu")
    found = impl.resolve({"cpu": inside}, {"acc": outside})
    assert found == "wheel.Acc", f"got {found!r}, expected the plug-in's 'wheel.Acc': a device from outside comes first"
    found = ""
    try:
        found = impl.resolve({"cuda": inside, "cpu": inside}, {"acc": outside})
    except impl.PluginError as error:
        found = str(error)
    assert found == "wheel.Acc", (
        f"got {found!r}, expected 'wheel.Acc': two built-in ones do not matter beside a plug-in"
    )


def test_absent_device_is_no_error(impl, caplog):
    inside, _ = there("ours.Cpu")
    found = impl.resolve({"cpu": inside, "cuda": absent}, {"acc": absent})
    assert found == "ours.Cpu", f"got {found!r}, expected 'ours.Cpu'"
    assert not says(caplog)[1], f"a device that is not there is no fault: got the lines {says(caplog)[1]}"


def test_two_active_is_an_error_naming_both(impl):
    inside, _ = there("ours.Cpu")
    text = r"^only one plugin platform can be active, but acc, bcc are; set MINI_VLLM_PLUGINS to one of them$"
    with pytest.raises(impl.PluginError, match=text):
        impl.resolve({"cpu": inside}, {"acc": there("a.A")[0], "none": absent, "bcc": there("b.B")[0]})
    with pytest.raises(impl.PluginError, match=r"^only one built-in platform can be active, but cuda, rocm are$"):
        impl.resolve({"cuda": there("a.A")[0], "rocm": there("b.B")[0], "cpu": absent}, {})


def test_a_raising_register_is_said(impl, caplog):
    found = impl.resolve({"cuda": broken, "cpu": there("ours.Cpu")[0]}, {"acc": broken})
    assert found == "ours.Cpu", f"got {found!r}, expected 'ours.Cpu': who raises has no device"
    for name in ("acc", "cuda"):
        said, lines = says(caplog, name, "driver")
        assert said, f"{name} raised OSError('no driver'): expected a warning with both, got {lines}"


def test_asked_once(impl):
    (outside, calls), (inside, ours) = there("wheel.Acc"), there("ours.Cpu")
    impl.resolve({"cpu": inside}, {"acc": outside})
    assert len(calls) == 1, f"register of 'acc' ran {len(calls)} times: a device may be opened there, ask once"
    assert len(ours) <= 1, f"register of 'cpu' ran {len(ours)} times: ask once"
    impl.resolve({"cpu": inside}, {"acc": absent})
    assert len(ours) in (1, 2), f"register of 'cpu' ran {len(ours)} times in two resolutions, expected 2 at most"


def test_a_shadow_is_refused(impl):
    for register, calls in (there("wheel.Cpu"), (absent, []), (broken, [])):
        (other, others), (inside, ours) = there("wheel.Acc"), there("ours.Cpu")
        with pytest.raises(impl.PluginError, match=r"^plugin 'cpu' has the name of a built-in platform$"):
            impl.resolve({"cpu": inside}, {"acc": other, "cpu": register})
        assert calls + others + ours == [], f"{calls + others + ours} were asked: first the names, then the devices"


def test_nobody_is_there(impl):
    with pytest.raises(impl.PluginError, match=r"^no platform is active; asked: acc, bcc, cpu$"):
        impl.resolve({"cpu": absent}, {"acc": absent, "bcc": broken})
    with pytest.raises(impl.PluginError, match=r"^no platform is active; asked: cpu$"):
        impl.resolve({"cpu": absent}, {})


def test_an_answer_that_is_no_name(impl):
    for answer in (3, "", False, ["wheel.Acc"]):
        expected = f"plugin 'acc' must return the name of a class or None, got {answer!r}"
        with pytest.raises(impl.PluginError, match=f"^{re.escape(expected)}$"):
            impl.resolve({"cpu": absent}, {"acc": there(answer)[0]})
    with pytest.raises(impl.PluginError, match=r"^platform 'cpu' must return the name of a class or None, got 0$"):
        impl.resolve({"cpu": there(0)[0]}, {})


def test_ctrl_c_goes_up(impl, site):
    def interrupted():
        raise KeyboardInterrupt

    went = ""
    try:
        impl.resolve({"cpu": there("ours.Cpu")[0]}, {"acc": interrupted})
    except KeyboardInterrupt:
        went = "KeyboardInterrupt"
    assert went == "KeyboardInterrupt", "somebody pressed Ctrl-C while a device was looked for, and nobody heard it"
    given.install(site, "raise KeyboardInterrupt\n", {"bad": "register"})
    went = ""
    try:
        impl.discover(given.GROUP, "bad")
    except KeyboardInterrupt:
        went = "KeyboardInterrupt"
    assert went == "KeyboardInterrupt", "somebody pressed Ctrl-C while a wheel was imported, and nobody heard it"


# ---- the device ----------------------------------------------------------------------------------------------------


def test_bytes_are_counted_as_they_cross(impl):
    device = impl.Ref64Device()
    array = device.to_device(np.ones((3, 4), np.float32))
    back = device.to_host(array, np.float32)
    assert np.array_equal(array, np.ones((3, 4))) and np.array_equal(back, np.ones((3, 4))), "twelve ones went over"
    counted = device.h2d, device.d2h, device.live, device.peak
    assert counted == (48, 48, 96, 96), (
        f"float32 [3, 4] there and back: got h2d, d2h, live, peak {counted}, expected (48, 48, 96, 96): it crosses in "
        "float32 and lies there in float64"
    )
    assert (array.dtype, back.dtype) == (np.float64, np.float32), f"got {array.dtype} there and {back.dtype} here"
    device.free(array)
    counted = device.h2d, device.d2h, device.live, device.peak
    assert counted == (48, 48, 0, 96), f"after free: got {counted}, expected (48, 48, 0, 96): the peak is the most"
    small = device.to_device(np.ones(2, np.float16))
    counted = device.h2d, device.live, device.peak
    assert counted == (52, 16, 96), f"then float16 [2]: got h2d, live, peak {counted}, expected (52, 16, 96)"
    assert device.to_host(small, "float64").nbytes == 16 and device.d2h == 64, f"d2h: got {device.d2h}, expected 64"


def test_the_device_has_its_own_copy(impl):
    device, array = impl.Ref64Device(), np.arange(3.0)
    there = device.to_device(array)
    array[0] = 7
    assert there[0] == 0, "the host's array was changed, and the device's with it: expected a copy, also of float64"
    back = device.to_host(there, np.float64)
    back[1] = 9
    assert there[1] == 1, "what came back was changed, and what is on the device with it: expected a copy"


def test_whole_numbers_stay(impl):
    device, ids = impl.Ref64Device(), np.array([2**53 + 1, 5])
    there = device.to_device(ids)
    assert there.dtype == ids.dtype and there.tolist() == ids.tolist(), (
        f"got {there.dtype} {there.tolist()}, expected {ids.dtype} {ids.tolist()}: a token id is no float"
    )
    there[0] = 1
    assert ids[0] == 2**53 + 1, "the device's array was changed, and the host's with it"
    device.free(there)
    assert device.live == 0, f"got {device.live} bytes on the device, expected 0"
    small = device.to_device(np.array([5, 6], np.int32))
    assert (small.dtype, device.live) == (np.int32, 8), (
        f"int32 [2]: got {small.dtype}, {device.live} bytes, expected int32, 8"
    )


def test_free_of_what_is_not_there(impl):
    device = impl.Ref64Device()
    there, other = device.to_device(np.ones(3)), device.to_device(np.ones(3))
    device.free(there)
    for array in (there, np.ones(3), device.to_host(other, np.float64)):
        with pytest.raises(ValueError, match=r"^free: this array is not on the device$"):
            device.free(array)
        assert device.live == 24, f"a refused free changed live: got {device.live}, expected 24, one array of three"
    for _ in range(8):
        device.to_device(np.ones(3))  # nobody keeps it, but it is not freed
    for array in [np.ones(3) for _ in range(4000)]:
        with contextlib.suppress(ValueError):
            device.free(array)
    assert device.live == 9 * 24, (
        f"nine arrays of three lie there, and 4,000 of the host were refused: got {device.live} bytes, expected "
        f"{9 * 24}: a host's array may have the id of one that nobody keeps"
    )


class Recorded:
    """A model that writes down what it is called with, and doubles."""

    def __init__(self):
        self.calls = []

    def forward(self, input_ids, positions, attn, inputs_embeds=None):
        self.calls.append((input_ids, positions, attn, inputs_embeds))
        rows = positions.astype(np.float64) if inputs_embeds is None else inputs_embeds
        return 2.0 * rows

    def compute_logits(self, hidden):
        return hidden / 4.0


def test_the_program_is_the_model(impl):
    model, device = Recorded(), impl.Ref64Device()
    program = impl.Ref64Program(model, device)
    ids, positions = np.array([7, 8, 9]), np.array([0, 1, 2])
    hidden = program.forward(ids, positions, "attn")
    assert np.array_equal(hidden, [0, 2, 4]), f"got {hidden.tolist()}, expected the model's [0, 2, 4]"
    there = model.calls[0]
    assert np.array_equal(there[0], ids) and np.array_equal(there[1], [0, 1, 2]), f"the model was called with {there}"
    assert (there[2], there[3]) == ("attn", None), f"the model was called with {there}"
    assert (ids.tolist(), positions.tolist()) == ([7, 8, 9], [0, 1, 2]), "the host's ids or positions were changed"
    assert there[0] is not ids and there[1] is not positions, "the model got the host's arrays, expected the device's"
    logits = program.compute_logits(hidden)
    assert logits.dtype == np.float32 and np.array_equal(logits, [0, 0.5, 1]), (
        f"got {logits}, expected 0, 0.5, 1 in float32"
    )
    assert np.array_equal(hidden, [0, 2, 4]), "the hidden states were changed"
    assert (device.h2d, device.d2h, device.live) == (48, 12, 0), f"got {(device.h2d, device.d2h, device.live)}"


def test_embeddings_in_the_place_of_ids(impl):
    model, device = Recorded(), impl.Ref64Device()
    embeds = np.ones((3, 2), np.float32)
    hidden = impl.Ref64Program(model, device).forward(None, np.array([0, 1, 2]), "attn", embeds)
    assert np.array_equal(hidden, 2 * embeds), f"got {hidden.tolist()}, expected twice the embeddings"
    ids, _, _, there = model.calls[0]
    assert ids is None and there.dtype == np.float64, f"the model got ids {ids} and embeddings {there!r}"
    assert (device.h2d, device.live) == (24 + 24, 0), f"h2d, live: got {(device.h2d, device.live)}, expected (48, 0)"


# ---- the platform in the engine ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outside(impl, tmp_path_factory):
    """Your file in a wheel on the path, and an engine that has looked for nothing yet."""
    site = tmp_path_factory.mktemp("site")
    given.install_lab(site, impl)
    patch = pytest.MonkeyPatch()
    patch.setenv("MINI_VLLM_PLUGINS", "ref64")
    given.forget()
    with given.on_the_path(site):
        yield impl
    given.forget()
    patch.undo()


@pytest.fixture(scope="module")
def served(outside):
    """Pocket on the Ref64 and on a CPU in float64: the engine's device, what was counted, the tokens of both."""
    from mini_vllm import LLM, SamplingParams

    outside.register()
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    on_cpu = LLM(given.POCKET, device="cpu", dtype="float64", num_blocks=64).generate(
        list(given.PROMPTS), params, use_tqdm=False
    )
    llm = LLM(given.POCKET, gpu_memory_utilization=0.5)
    core = llm.llm_engine.engine_core
    device = getattr(core.config.platform, "device", None)
    assert device is not None, f"the engine took device={core.config.device!r}, expected 'ref64' from the wheel"
    counted = {"loaded": (device.h2d, device.d2h, device.live)}
    outputs = llm.generate(list(given.PROMPTS), params, use_tqdm=False)
    counted["served"] = device.h2d, device.d2h, device.live
    tokens = [[each.outputs[0].token_ids for each in some] for some in (outputs, on_cpu)]
    prompts = sum(len(each.prompt_token_ids) for each in outputs)
    model, runner = core.model_runner.model, core.model_runner
    yield {
        "core": core, "device": device, "counted": counted, "tokens": tokens, "prompts": prompts, "llm": llm,
        "weights": model.weight_nbytes, "vocab": model.vocab_size, "runner": runner,
    }  # fmt: skip


def test_the_wheel_is_found(outside):
    found = outside.discover(given.GROUP, "ref64")
    assert list(found) == ["ref64"], f"the wheel's entry points: got {list(found)}, expected ['ref64']"
    qualname = outside.resolve({"cpu": there("ours.Cpu")[0]}, found)
    module, _, name = qualname.rpartition(".")
    assert getattr(sys.modules.get(module), name, None) is outside.Ref64Platform, (
        f"register gave {qualname!r}, expected the module and class under which Ref64Platform can be imported"
    )


def test_the_engine_runs_on_it(served):
    core = served["core"]
    where = core.config.device, type(core.model_executor.driver_worker).__name__, core.config.dtype
    assert where == ("ref64", "Ref64Worker", "float64"), f"got {where}, expected ('ref64', 'Ref64Worker', 'float64')"
    on_chip, on_cpu = served["tokens"]
    assert on_chip == on_cpu, f"greedy tokens on the chip {on_chip}, expected the CPU's in float64, {on_cpu}"
    name = type(served["runner"].forward.__self__).__name__
    assert name == "Ref64Program", f"the engine calls {name}.forward, expected Ref64Program's"


def test_the_weights_cross_once(served):
    weights, (h2d, d2h, live) = served["weights"], served["counted"]["loaded"]
    assert (h2d, d2h, live) == (weights, 0, weights), (
        f"loaded: got h2d, d2h, live {(h2d, d2h, live)}, expected {(weights, 0, weights)}: each weight crosses, once"
    )
    steps = served["counted"]["served"][0] - h2d
    assert 0 < steps < weights, (
        f"{steps:,} bytes crossed while tokens were made, expected more than 0, less than weights"
    )


def test_only_tokens_and_logits_cross(served):
    h2d, d2h, live = served["counted"]["served"]
    tokens = served["prompts"] + 2 * 3
    assert h2d - served["weights"] == 16 * tokens, (
        f"{h2d - served['weights']} bytes crossed to the device in {tokens} tokens, expected {16 * tokens}: an id "
        "and a position of 8 bytes each"
    )
    assert d2h == 2 * 4 * served["vocab"] * 4, (
        f"{d2h} bytes came back, expected {2 * 4 * served['vocab'] * 4}: 2 requests, 4 tokens, {served['vocab']} "
        "logits in float32"
    )
    assert live == served["weights"], f"{live - served['weights']} bytes of steps lie on the device still, expected 0"


def test_the_memory_is_the_devices(outside, served):
    cache, room = served["runner"].kv_cache.nbytes, outside.MEMORY // 2 - served["weights"]
    assert 0.98 * room < cache <= room, (
        f"half of the chip less the weights is {room:,} bytes; the cache takes {cache:,}, expected whole blocks of it"
    )
    platform = outside.Ref64Platform()
    there = platform.device.to_device(np.ones(5, np.float32))
    platform.device.free(platform.device.to_device(np.ones(7)))
    found = platform.get_device_total_memory(), platform.get_current_memory_usage()
    assert found == (outside.MEMORY, there.nbytes), (
        f"of a chip with five numbers, and seven that were freed: got {found}, expected {(outside.MEMORY, 40)}"
    )


def test_an_attention_that_was_asked_for(outside, served):
    name = type(served["runner"].attention).__name__
    assert name == "PagedOnlineBackend", f"nobody asked for one: got {name}, expected PagedOnlineBackend"
    found = outside.Ref64Platform().get_attn_backend_cls("dense")
    assert found == "dense", f"'dense' was asked for: got {found!r}"


@pytest.mark.parametrize(
    ("setting", "value"),
    [("kv_cache_dtype", "fp8"), ("tensor_parallel_size", 2), ("quantization", "w8a8"), ("enforce_eager", True)],
)
def test_what_the_chip_cannot_do_is_refused(outside, setting, value):
    plain = {"kv_cache_dtype": "auto", "tensor_parallel_size": 1, "quantization": None, "enforce_eager": False}
    platform = outside.Ref64Platform()
    platform.check_and_update_config(SimpleNamespace(**plain))
    expected = f"{setting}={value!r} is not there with device='ref64'"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        platform.check_and_update_config(SimpleNamespace(**{**plain, setting: value}))


def test_the_chip_gets_its_memory_back(served, monkeypatch):
    from mini_vllm import Worker

    ended, other = [], served["device"].to_device(np.ones(5))
    weight = served["core"].model_executor.driver_worker.model.context.layers[0].arrays[0]
    monkeypatch.setattr(Worker, "shutdown", lambda self: ended.append(type(self).__name__))
    served["llm"].llm_engine.shutdown()
    assert ended == ["Ref64Worker"], f"the worker that it stands on has more to end: got {ended}, expected its shutdown"
    assert served["device"].live == other.nbytes, (
        f"{served['device'].live:,} bytes lie on the device after shutdown, expected {other.nbytes}, which are not the "
        "worker's: it frees its weights, and nothing else"
    )
    with pytest.raises(ValueError, match=r"^free: this array is not on the device$"):
        served["device"].free(weight)
