"""``python -m bigfs`` is the command line."""

from bigfs.cli import program

program()
