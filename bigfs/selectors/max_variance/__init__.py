"""MaxVariance: the features of largest variance."""

from bigfs.selectors.method import Method

METHOD = Method(
    "max_variance",
    "MaxVariance",
    __name__,
    sparse=True,
    keeps_sums=True,
)
