"""From a graph to numbers: rows, liveness, timeline, prediction, explanation, report."""
