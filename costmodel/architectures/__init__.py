"""Architectures: what a user describes, and its forward pass on paper."""
