// When has a request ended? Twin: mini_vllm/core/sched/utils.py.

import { RequestStatus } from "../../request.js";

/**
 * Whether the token just appended ends the request; if so, its final status is set. The EOS token comes before a stop
 * token, and both before the length: who meets EOS exactly at the cap has given a complete answer.
 * @param {import("../../request.js").Request} request has at least one output token
 * @param {number} max_model_len cap on prompt and output together
 */
export function check_stop(request, max_model_len) {
  const { eos_token_id = null, stop_token_ids = [] } = request.sampling_params;
  const num_output_tokens = request.output_token_ids.length;
  const last_token_id = request.output_token_ids[num_output_tokens - 1];
  if (last_token_id === eos_token_id || stop_token_ids.includes(last_token_id)) {
    request.status = RequestStatus.FINISHED_STOPPED;
    return true;
  }
  if (request.num_tokens >= max_model_len || num_output_tokens >= request.max_tokens) {
    request.status = RequestStatus.FINISHED_LENGTH_CAPPED;
    return true;
  }
  return false;
}
