"""Workers that die, hang, fail, are slow, or come to an end: who is told what, and what is left behind."""

import gc
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.distributed import shared_memory
from mini_vllm.tests.engine.engines import with_a_limit
from mini_vllm.tests.executor import in_workers
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
ROOT = Path(__file__).resolve().parents[3]
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
ONE = SamplingParams(temperature=0.0, max_tokens=1)
PROMPTS = [{"prompt_token_ids": [5, 6, 7]}, {"prompt_token_ids": [8, 9, 10]}]
MARKED = [{"prompt_token_ids": [5, 499]}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_tiny("llama", tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def expected(folder):
    return tokens(LLM(folder, num_blocks=64), PROMPTS)


@pytest.fixture(scope="module")
def shared(folder):
    """Two ranks for all tests that leave them alive."""
    made = make(folder)
    yield made
    made.llm_engine.engine_core.shutdown()


@pytest.fixture
def llm(shared):
    """Idle, with nothing in its cache and nothing put into its ranks: before a test and after it."""
    yield shared
    shared.llm_engine.collective_rpc(in_workers.restore)
    assert not shared.llm_engine.has_unfinished_requests() and shared.llm_engine.reset_prefix_cache()


def make(folder, **args):
    return LLM(folder, num_blocks=64, **{"tensor_parallel_size": 2, **args})


def tokens(llm, prompts):
    return [o.outputs[0].token_ids for o in llm.generate(prompts, GREEDY, use_tqdm=False)]


def executor_of(llm):
    return llm.llm_engine.engine_core.model_executor


def pids(llm):
    return [worker.proc.pid for worker in executor_of(llm).workers]


def is_there(pid):
    """A zombie counts too: somebody has to have waited for it."""
    return Path(f"/proc/{pid}").exists()


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def nothing_new():
    """A function that says whether all files in shared memory and all descriptors of this process were there now; what
    other processes and threads have for a moment goes again."""
    shm, fds = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    return lambda: set(os.listdir("/dev/shm")) <= shm and len(os.listdir("/proc/self/fd")) <= fds


def test_the_engine_s_process_is_the_first_rank(llm, expected):
    engine = llm.llm_engine
    assert engine.collective_rpc(in_workers.pid_of) == [os.getpid(), *pids(llm)] and len(pids(llm)) == 1
    assert engine.apply_model(in_workers.num_heads) == [2, 2] and engine.model.num_heads == 2
    assert engine.engine_core.model_runner is executor_of(llm).driver_worker.model_runner
    big = bytes(5 << 20)
    assert engine.collective_rpc(in_workers.echo, args=(big,)) == [big, big]
    executor_of(llm).check_health()
    assert (
        tokens(make(llm.llm_engine.folder, tensor_parallel_size=1, distributed_executor_backend="mp"), PROMPTS)
        == expected
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_is_an_error_and_the_next_step_works(llm, expected, rank):
    llm.llm_engine.collective_rpc(in_workers.fail_on, args=(499, rank))
    error, message = ArithmeticError, "no such token"
    if rank == 1:
        error = RuntimeError
        message = rf"rank 1 \(pid {pids(llm)[0]}\) failed in execute_model: ArithmeticError: no such token \(in_wor"
    for _ in range(3):
        with pytest.raises(error, match=message):
            llm.generate(MARKED, GREEDY, use_tqdm=False)
        assert not executor_of(llm).is_failed and tokens(llm, PROMPTS) == expected
    here, there = llm.llm_engine.collective_rpc(in_workers.batch_of)
    assert here == there


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_after_the_last_meeting_ends_the_step_too(llm, expected, rank):
    llm.llm_engine.collective_rpc(in_workers.fail_in_sampling, args=(rank,))
    error = RuntimeError if rank else ArithmeticError
    message = "rank 1 .* failed in sample_tokens: ArithmeticError: no sample" if rank else "no sample"
    with pytest.raises(error, match=message):
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert tokens(llm, PROMPTS) == expected


def test_odd_errors_and_answers_come_across(llm, expected):
    rpc = llm.llm_engine.collective_rpc
    with pytest.raises(RuntimeError, match=r"rank 1 .* failed in raise_unpicklable: Odd: from inside"):
        rpc(in_workers.raise_unpicklable, args=(1,))
    with pytest.raises(RuntimeError, match=r"rank 1 .* failed in lambda_of: .*(pickle|local object)"):
        rpc(in_workers.lambda_of)
    with pytest.raises(AttributeError, match="no_such_method"):
        rpc("no_such_method")
    with pytest.raises(Exception, match=r"[Pp]ickle|local object"):
        rpc(lambda worker: 1)
    assert tokens(llm, PROMPTS) == expected


def test_a_killed_worker_is_known_at_once_and_the_engine_refuses_with_that_error(folder, expected):
    llm = make(folder)
    tokens(llm, PROMPTS)
    [second] = pids(llm)
    os.kill(second, signal.SIGKILL)
    message = rf"rank 1 \(pid {second}\) died in .*, by signal 9 \(SIGKILL\); .* Make a new engine\."
    with pytest.raises(RuntimeError, match=message):
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=message):
            llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    with pytest.raises(RuntimeError, match=message):
        llm.llm_engine.collective_rpc("check_health")
    assert not llm.llm_engine.has_unfinished_requests()
    wait_until(lambda: not is_there(second))
    assert tokens(make(folder), PROMPTS) == expected  # a new engine works


def test_a_worker_that_is_killed_in_the_midst_of_a_step(folder):
    llm = make(folder)
    llm.llm_engine.collective_rpc(in_workers.stop_on, args=(499, 1, signal.SIGKILL))
    with pytest.raises(RuntimeError, match=r"rank 1 .* died in execute_model, after meeting \d of the ranks, by si"):
        llm.generate(MARKED, GREEDY, use_tqdm=False)


@pytest.mark.slow
def test_a_stopped_worker_is_noticed_and_named(folder, expected):
    def body(limit):
        llm = make(folder, execute_model_timeout_seconds=limit)
        ids = pids(llm)
        llm.llm_engine.collective_rpc(in_workers.stop_on, args=(499, 1))
        message = (
            rf"rank 1 \(pid {ids[0]}\) has made no progress for {limit:g} s in execute_model, after meeting \d of the "
            r"ranks\. The process is stopped \(SIGSTOP\)\. Make a new engine; .*execute_model_timeout_seconds\."
        )
        with pytest.raises(RuntimeError, match=message):
            llm.generate(MARKED, GREEDY, use_tqdm=False)
        with pytest.raises(RuntimeError, match=message):
            llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        wait_until(lambda: not any(map(is_there, ids)))

    with_a_limit(body)
    assert tokens(make(folder), PROMPTS) == expected


def test_a_call_has_its_own_time_and_a_dead_rank_is_named_before_the_next(folder):
    llm = make(folder)
    executor, message = executor_of(llm), r"rank 1 .* no progress for 0\.5 s in stop_here"
    with pytest.raises(RuntimeError, match=message):
        llm.llm_engine.collective_rpc(in_workers.stop_here, timeout=0.5, args=(1,))
    calls = executor._number
    with pytest.raises(RuntimeError, match=message):
        llm.llm_engine.collective_rpc("check_health")
    assert executor._number == calls, "nothing is sent to ranks that are gone"


@pytest.mark.slow
def test_a_worker_that_hangs_is_named_and_one_that_is_only_slow_is_waited_for(folder):
    def body(limit):
        llm = make(folder, execute_model_timeout_seconds=limit)
        llm.llm_engine.collective_rpc(in_workers.sleep_on, args=(499, 1, 0.4 * limit))  # three layers: longer than that
        assert len(llm.generate(MARKED, ONE, use_tqdm=False)[0].outputs[0].token_ids) == 1
        llm.llm_engine.collective_rpc(in_workers.sleep_on, args=(498, 1, 600))
        message = rf"rank 1 .* no progress for {limit:g} s in execute_model.* is there, but does not get"
        with pytest.raises(RuntimeError, match=message):
            llm.generate([{"prompt_token_ids": [5, 498]}], GREEDY, use_tqdm=False)

    with_a_limit(body)


@pytest.mark.slow
def test_a_worker_stopped_between_requests_is_noticed_too(folder):
    def body(limit):
        llm = make(folder, execute_model_timeout_seconds=limit)
        os.kill(pids(llm)[0], signal.SIGSTOP)
        message = rf"rank 1 .* no progress for {limit:g} s in execute_model. The process is stopped"
        with pytest.raises(RuntimeError, match=message):
            llm.generate(PROMPTS, GREEDY, use_tqdm=False)

    with_a_limit(body)


def test_a_checkpoint_that_cannot_be_loaded_is_the_same_error_as_in_one_process(folder, tmp_path):
    broken = Path(save_tiny("llama", tmp_path))
    [file] = broken.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-100])
    errors = []
    for ranks in (1, 2):
        with pytest.raises(ValueError) as caught:
            make(str(broken), tensor_parallel_size=ranks)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]


@pytest.mark.slow
def test_ranks_sleep_between_requests_and_wake_up(llm, expected):
    assert tokens(llm, PROMPTS) == expected

    def asleep():
        before = sum(map(cpu_seconds, pids(llm)))
        time.sleep(0.5)
        return sum(map(cpu_seconds, pids(llm))) - before < 0.25

    wait_until(asleep)
    assert tokens(llm, PROMPTS) == expected


def cpu_seconds(pid):
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / 100


@pytest.mark.slow
def test_workers_end_with_their_engine_and_nothing_is_left(folder):
    warm = make(folder)
    del warm
    gc.collect()
    nothing = nothing_new()
    llm = make(folder)
    tokens(llm, PROMPTS)
    workers = pids(llm)
    assert all(map(is_there, workers))
    del llm
    gc.collect()
    wait_until(lambda: not any(map(is_there, workers)))
    wait_until(nothing)


def test_shutdown_may_be_called_twice_and_steps_are_refused_afterwards(folder):
    llm = make(folder)
    workers = pids(llm)
    for _ in range(2):
        llm.llm_engine.engine_core.shutdown()
    assert not any(map(is_there, workers))
    with pytest.raises(RuntimeError, match="the executor has been shut down"):
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)


SCRIPT = """
import os, sys, time
print("once", flush=True)
from mini_vllm import LLM, SamplingParams
llm = LLM(sys.argv[1], num_blocks=64, tensor_parallel_size=2)
params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
[output] = llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
print(output.outputs[0].token_ids, flush=True)
"""
PIDS = "print(*[w.proc.pid for w in llm.llm_engine.engine_core.model_executor.workers], flush=True)\n"


def run(command, stdin=None, **kwargs):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command], input=stdin, text=True, capture_output=True, env=env, timeout=240, **kwargs
    )


@pytest.mark.slow
@pytest.mark.parametrize("way", ["file", "stdin", pytest.param("command", marks=pytest.mark.slow)])
def test_a_script_needs_no_guard_and_ends_without_a_word(folder, expected, tmp_path, way):
    """Workers do not import it; "once" would be there twice. Nothing is said on stderr at the end."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    command, stdin = {
        "file": ([str(file), folder], None),
        "stdin": (["-", folder], SCRIPT),
        "command": (["-c", SCRIPT, folder], None),
    }[way]  # fmt: skip
    done = run(command, stdin)
    assert done.stdout.splitlines() == ["once", str(expected[0])] and done.stderr == ""
    assert done.returncode == 0


@pytest.mark.slow
def test_a_script_that_a_worker_has_to_import_is_told_about_the_guard(folder, tmp_path):
    """An engine argument is defined in it."""
    file = tmp_path / "script.py"
    made = "LLM(sys.argv[1], num_blocks=64, served_model_name=Mine('x'), tensor_parallel_size=2)"
    body = f"class Mine(str): pass\nllm = {made}\n"
    file.write_text("import sys\nfrom mini_vllm import LLM\n" + body)
    done = run([str(file), folder])
    assert done.returncode == 1
    assert 'put what the script does under `if __name__ == "__main__":`' in done.stderr
    assert re.search("rank 1 .* died in load_model after 0 tensors, with exit code 1", done.stderr.splitlines()[-1])
    guarded = body.replace("llm =", 'if __name__ == "__main__":\n    llm =')
    called = "def two(worker): return 2\n" + guarded + "    assert llm.llm_engine.collective_rpc(two) == [2, 2]\n"
    file.write_text("import sys\nfrom mini_vllm import LLM\n" + called)
    assert run([str(file), folder]).returncode == 0  # and what the script defines can be called there


def test_a_worker_whose_engine_is_gone_ends_by_itself(folder):
    llm = make(folder)
    [worker] = executor_of(llm).workers
    llm.llm_engine.collective_rpc(in_workers.orphan)
    wait_until(lambda: not worker.proc.is_alive())
    with pytest.raises(RuntimeError, match=r"rank 1 .* died in .*, with exit code 0"):
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_survives_the_engine_s_process(folder, tmp_path, signum):
    """Killed, or interrupted as by Ctrl-C in a terminal (the whole group), in the midst of its work."""
    file = tmp_path / "script.py"
    endless = "while True:\n    llm.generate([{'prompt_token_ids': [5, 6, 7]}], params, use_tqdm=False)\n"
    file.write_text(SCRIPT + PIDS + endless)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        [sys.executable, str(file), folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
        start_new_session=True,
    )  # fmt: skip
    assert parent.stdout is not None and parent.stderr is not None
    assert parent.stdout.readline() == "once\n" and parent.stdout.readline()
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 1 and all(map(is_there, workers))
    if signum == signal.SIGINT:
        os.killpg(parent.pid, signum)
    else:
        parent.send_signal(signum)
    errors = parent.communicate(timeout=120)[1]
    wait_until(lambda: not any(map(is_there, workers)))
    assert "leaked" not in errors
    if signum == signal.SIGINT:
        assert errors.splitlines()[-1] == "KeyboardInterrupt" and errors.count("Traceback") == 1


def test_ctrl_c_in_the_midst_of_a_step_leaves_a_working_engine(llm, expected):
    llm.llm_engine.collective_rpc(in_workers.sleep_on, args=(499, 1, 0.2))
    for delay in (0.01, 0.1, 0.25):
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
            while True:
                llm.generate(MARKED * 3, GREEDY, use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    assert tokens(llm, PROMPTS) == expected
    here, there = llm.llm_engine.collective_rpc(in_workers.batch_of)
    assert here == there


def test_a_function_of_the_script_is_refused_before_anything_is_sent(llm, expected):
    function = types.FunctionType((lambda model: None).__code__, {"__name__": "__main__"}, "mine")
    with pytest.raises(ValueError, match="'mine' is defined in `__main__`, which workers do not import"):
        llm.llm_engine.apply_model(function)
    with pytest.raises(ValueError, match="'mine' is defined in `__main__`"):
        llm.llm_engine.collective_rpc(function)
    assert tokens(llm, PROMPTS) == expected


def test_a_call_that_a_worker_cannot_read_is_an_error_there_and_the_worker_lives(llm, expected, tmp_path, monkeypatch):
    """A module that only the script can import; an argument whose class the script defines."""
    (tmp_path / "only_here.py").write_text("def here(worker): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = type("Mine", (), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Mine", mine, raising=False)
    workers, rpc = pids(llm), llm.llm_engine.collective_rpc
    for call, reason in (
        (lambda: rpc(importlib.import_module("only_here").here), "ModuleNotFoundError: No module named 'only_here'"),
        (lambda: rpc(in_workers.echo, args=(mine(),)), "AttributeError: Can't get attribute 'Mine' on <module '__main"),
    ):
        with pytest.raises(RuntimeError, match=r"rank 1 \(pid \d+\) failed in .*this worker cannot read the call") as e:
            call()
        assert reason in str(e.value) and "a module that workers can import" in str(e.value)
    assert pids(llm) == workers and not executor_of(llm).is_failed and tokens(llm, PROMPTS) == expected


def test_dummy_weights_are_those_of_one_rank(folder):
    one, two = (make(folder, load_format="dummy", dtype="float64", tensor_parallel_size=n) for n in (1, 2))
    assert tokens(two, PROMPTS) == tokens(one, PROMPTS)
    params = SamplingParams(max_tokens=2, temperature=0.0, logprobs=5)
    scores = [
        {i: p.logprob for i, p in llm.generate(PROMPTS[:1], params)[0].outputs[0].logprobs[1].items()}
        for llm in (one, two)
    ]
    assert len(set(scores[0].values())) > 1 and scores[1] == pytest.approx(scores[0], rel=1e-12)
