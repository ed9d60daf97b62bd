"""Pure scheduling: a plan is a function of state and budget. No clocks, loops or tensors here."""
