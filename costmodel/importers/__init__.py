"""Where a model comes from: the zoo, files, published configurations, PyTorch modules."""
