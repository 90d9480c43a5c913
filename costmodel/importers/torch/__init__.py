"""Models taken from live PyTorch modules: what one forward pass calls, as data, and what each call costs."""
