"""PivotedQR: the features of largest residual norm, picked one after the other."""

from __future__ import annotations

from pydantic import Field

from bigfs.config.fields import PositiveInt, Section
from bigfs.selectors.method import Bound, Method


class PivotedQRParameters(Section):
    """QR with column pivoting (Businger, Golub 1965), also for placing sensors."""

    n_components: PositiveInt | None = Field(
        None,
        description="Leading principal components whose loadings are decomposed, as for the "
        "placement of sensors. null: the features themselves.",
    )


METHOD = Method(
    "pivoted_qr",
    "PivotedQR",
    __name__,
    PivotedQRParameters,
    bounds=(Bound("n_components", "n_features"),),
)
