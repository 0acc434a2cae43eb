"""The lab contract: starter and solution in step, listed mistakes and mutants caught."""
