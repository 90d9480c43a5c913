"""The explorer: one HTML page of a model's closed forms, for a browser, without a server or a network."""
