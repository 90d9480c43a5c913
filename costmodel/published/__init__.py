"""Configurations as published with open-weight models, read as data: one strict description for each family."""
