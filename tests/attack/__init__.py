"""The attack on Potluck, as a suite: `make attack MINUTES=30`, or `python -m attack --help` from the folder tests/."""
