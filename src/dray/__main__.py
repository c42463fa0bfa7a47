"""`python -m dray` is the `dray` command."""

import sys

from dray.cmd.main import main

sys.exit(main())
