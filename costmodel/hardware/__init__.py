"""Machines as specs: what an accelerator or a processor can do at most, every figure with its source."""
