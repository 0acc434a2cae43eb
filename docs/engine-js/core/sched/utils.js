// When has a request ended? Twin: mini_vllm/core/sched/utils.py.

import { RequestStatus } from "../../request.js";

/**
 * Whether the token just appended ends the request; if so, its final status is set. Before `min_tokens` nothing but the
 * full context does; then the EOS token, a stop token, and the length, in this order.
 * @param {import("../../request.js").Request} request has at least one output token
 * @param {number} max_model_len cap on prompt and output together
 */
export function check_stop(request, max_model_len) {
  const { min_tokens = 0, eos_token_id = null, stop_token_ids = [] } = request.sampling_params;
  const num_output_tokens = request.output_token_ids.length;
  if (num_output_tokens < min_tokens && request.num_tokens < max_model_len) return false;

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
