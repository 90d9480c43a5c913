"""Descriptions and the files that hold them: named fields checked strictly, YAML and JSON read as plain data."""
