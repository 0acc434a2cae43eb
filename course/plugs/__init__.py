"""Labs in the engine: which part they replace, guards around them, the milestone."""
