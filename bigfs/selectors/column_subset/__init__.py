"""ColumnSubset: the features that explain most of all others, picked one after the other."""

from bigfs.selectors.method import Method

METHOD = Method("column_subset", "ColumnSubset", __name__)
