"""ColumnSubset and PivotedQR: greedy selection of features by their residuals."""

from __future__ import annotations

from bigfs.config.fields import PositiveInt, Section
from bigfs.selectors.method import Bound, Method


class PivotedQRParameters(Section):
    """QR with column pivoting (Businger, Golub 1965), also for placing sensors.

    Attributes
    ----------
    n_components
        Number of leading principal components whose loadings are decomposed, as in sensor
        placement. null: the features themselves are decomposed.
    """

    n_components: PositiveInt | None = None


COLUMN_SUBSET = Method("column_subset", "ColumnSubset", __name__, choose_by="choose_column_subset")
PIVOTED_QR = Method(
    "pivoted_qr",
    "PivotedQR",
    __name__,
    PivotedQRParameters,
    choose_by="choose_pivoted_qr",
    bounds=(Bound("n_components", "n_features"),),
)
