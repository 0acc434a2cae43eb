"""A red lab test, told to a learner: what was wanted, what came, where in her file."""
