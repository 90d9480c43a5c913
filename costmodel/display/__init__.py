"""Plain data for people: units, tables, figures."""
