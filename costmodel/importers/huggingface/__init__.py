"""Configurations as published with open-weight models, read as data: a family is a table of defaults and field names.

`fields` says how each published field is checked and which field of ours it is; `rules` are the few things that are
more than a name; `family` reads a configuration by one declaration; the declarations are in `gpt`, `llama`, `blocks`,
`experts`, `deepseek`, `hybrids`, `encoders`, `images` and `translators`; `families` finds the one that a
configuration names.
"""
