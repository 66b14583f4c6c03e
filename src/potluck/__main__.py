"""`python -m potluck` is the `potluck` command."""

from potluck.cli import main

main()
