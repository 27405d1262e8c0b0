"""HighlyVariable: features of count data that vary more than others with the same mean."""

from __future__ import annotations

import importlib.util
import math
from typing import Literal

from bigfs.config.fields import Section, Start
from bigfs.core.errors import InputError
from bigfs.selectors.method import Method


class HighlyVariableParameters(Section):
    """Highly variable genes, and other counts (Stuart et al. 2019; Townes et al. 2019).

    Attributes
    ----------
    flavor
        seurat_v3: variance of the clipped values over that of a trend, by median rank over
        batches; seurat_v3_paper: the same, by the number of batches first; deviance: deviance
        from counts that follow the totals of rows and features.
    batch_key
        Batch of each row; batches are scored separately: labels as in evaluate.labels. null:
        one batch.
    """

    flavor: Literal["seurat_v3", "seurat_v3_paper", "deviance"] = "seurat_v3"
    batch_key: Start | None = None


def _check(parameters: HighlyVariableParameters) -> None:
    """Raise InputError if the package that fits the trend is not installed."""
    if parameters.flavor != "deviance" and importlib.util.find_spec("skmisc") is None:
        raise InputError(
            f"HighlyVariable: flavor '{parameters.flavor}' needs scikit-misc to fit the variance "
            "trend. Install it with: pip install 'bigfs[anndata]', or use flavor 'deviance'."
        )


METHOD = Method(
    "highly_variable",
    "HighlyVariable",
    __name__,
    HighlyVariableParameters,
    scale_free=True,
    raw_counts=True,
    sparse=True,
    labels="batch_key",
    check=_check,
    # Only ranks below the number of selected features enter the median over batches.
    one_fit_up_to=lambda parameters: math.inf if parameters.batch_key is None else 0,
)
