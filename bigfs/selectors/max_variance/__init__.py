"""MaxVariance: the features of largest variance."""

from bigfs.selectors.method import Method

METHOD = Method(
    "max_variance",
    "MaxVariance",
    estimator="MaxVariance",
    module=__name__,
    sparse=True,
    keeps_sums=True,
)
