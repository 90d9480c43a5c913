"""``python -m costmodel``."""

from costmodel.cli import main

main()
