"""The learner's loop: where she is, the next lab, watch, hint, diff, reset, update."""
