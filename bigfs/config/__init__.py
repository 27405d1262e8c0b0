"""Settings: the sections that all methods share, field types, and error messages.

YAML files, ``--set a.b=c`` and Python keyword arguments are all validated by one tree of models.
The sections of methods come from their registry (`bigfs.selectors.registry`).
"""

from bigfs.config.comparison import Comparison, Entry, Methods
from bigfs.config.loading import dump_yaml, read_settings, validated
from bigfs.config.selection import Config, Selection

__all__ = [
    "Comparison",
    "Config",
    "Entry",
    "Methods",
    "Selection",
    "dump_yaml",
    "read_settings",
    "validated",
]
