"""`python -m remate.cli` is the command `remate`."""

import sys

from . import main

sys.exit(main())
