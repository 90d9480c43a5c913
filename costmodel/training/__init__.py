"""How a model is run, as data: settings, precision, optimizers."""
