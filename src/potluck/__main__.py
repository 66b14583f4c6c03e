"""`python -m potluck` is the `potluck` command."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # `python -m` puts the current folder first, where a file named like a library would be imported

from potluck.cli import main

main()
