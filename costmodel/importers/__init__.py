"""Where a model comes from when it is not written in Python: files, published configurations, modules of PyTorch."""
