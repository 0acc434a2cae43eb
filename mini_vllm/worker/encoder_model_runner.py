"""A runner that encodes items for other engines, and computes nothing else.

Upstream twin: the first lines of `GPUModelRunner.execute_model` of `vllm/v1/worker/gpu_model_runner.py`. An engine with
this runner has no KV cache there; here it has one that nobody writes into.
"""

from __future__ import annotations

from mini_vllm.core.sched.output import GrammarOutput, SchedulerOutput
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.worker.model_runner import ModelRunner


class EncoderModelRunner(ModelRunner):
    """Of an engine whose `ec_role` is "ec_producer".

    Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:3999 — "if has_ec_transfer() and not".
    """

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Encode the items of the plan, and carry them out."""
        assert self.encoder is not None, "an engine that encodes for others needs a model that takes media"
        self._update_states(scheduler_output)
        self.encoder.begin_step(scheduler_output)
        count = scheduler_output.total_num_scheduled_tokens
        self._passed: list[int] = []
        if count:
            self._passed = self.prepare_inputs(scheduler_output.num_scheduled_tokens, count).sampled_rows.tolist()

    def sample_tokens(self, grammar_output: GrammarOutput | None = None) -> ModelRunnerOutput:
        """Token 0 for each request whose prompt has been passed.

        Upstream: upstream/vllm/v1/outputs.py:304 — `make_empty_encoder_model_runner_output`, which has one for every
        request of the step.
        """
        batch = self.input_batch
        sampled: list[list[int]] = [[] for _ in batch.req_ids]
        for row in self._passed:
            sampled[row] = [0]
            batch.token_ids[row, min(int(batch.num_tokens[row]), batch.token_ids.shape[1] - 1)] = 0
            batch.num_tokens[row] += 1
            batch.states[row].output_token_ids.append(0)
        self._passed = []
        return ModelRunnerOutput(list(batch.req_ids), sampled)
