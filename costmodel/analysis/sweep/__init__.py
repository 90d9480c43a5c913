"""Sweeps: a grid of questions, answered together."""
