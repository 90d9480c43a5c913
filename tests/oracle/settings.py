"""How many architectures a differential test draws."""

import os

from tests.profiles import examples

DRAWN = int(os.environ.get("ORACLE_EXAMPLES", "30"))
differential = examples(DRAWN)
