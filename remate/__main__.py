"""`python -m remate` is the command `remate`."""

import sys

from .cli import main

sys.exit(main())
