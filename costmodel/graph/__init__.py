"""Paper tensors, and the tape on which a forward pass is recorded."""
