"""Write a selection into the ``var`` columns of an AnnData, as scanpy's functions do."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from bigfs.blocks.lazy import is_annotated
from bigfs.core.errors import InputError, InputTypeError, check_choice
from bigfs.selectors.base import BaseSelector
from bigfs.selectors.registry import METHODS
from bigfs.stages.curves import columns_of_var
from bigfs.store.source import open_matrix


def select(
    adata: Any,
    n_features_to_select: Any = None,
    *,
    method: str = "mcfs",
    layer: str | None = None,
    key_added: str = "bigfs",
    copy: bool = False,
    **parameters: Any,
) -> Any:
    """Select features of an AnnData and write their rank, score and selection to ``var``.

    Parameters
    ----------
    adata : AnnData
        In memory, backed or lazy.
    n_features_to_select : int, "auto", dict or None, default=None
        As in the estimator of the method.
    method : str, default="mcfs"
        Name of the method, as in a pipeline.
    layer : str or None, default=None
        Layer to read. None reads ``X``.
    key_added : str, default="bigfs"
        Prefix of the column names: ``var["bigfs_rank"]`` (1 is the best),
        ``var["bigfs_score"]`` (larger is better) and ``var["bigfs_selected"]``. The method and
        its parameters are stored in ``uns["bigfs"]``.
    copy : bool, default=False
        Return a copy with the new columns and leave ``adata`` unchanged.
    **parameters
        Further parameters of the estimator. Labels may be given as the name of a column of
        ``obs``, such as ``batch_key="batch"`` of `HighlyVariable`.

    Returns
    -------
    adata : AnnData or None
        The copy if ``copy`` is True, else None.

    Raises
    ------
    InputError
        If the method, layer or parameter does not exist, or the data cannot be used.

    Examples
    --------
    >>> import bigfs
    >>> bigfs.select(adata, 2000, method="highly_variable")  # doctest: +SKIP
    >>> scanpy.pp.pca(adata, mask_var="bigfs_selected")  # doctest: +SKIP
    >>> adata[:, adata.var["bigfs_selected"]]  # doctest: +SKIP
    """
    if not is_annotated(adata):
        raise InputTypeError(
            f"select takes an AnnData. Got {type(adata).__name__}. For other data, use a selector, "
            "such as bigfs.MCFS(20).fit(X)."
        )
    check_choice("method", method, METHODS)
    if not (isinstance(key_added, str) and key_added):
        raise InputError(f"key_added must be a non-empty string. Got {key_added!r}.")
    if copy and adata.isbacked:
        raise InputError(
            "copy=True needs the values in memory, but those of adata are in a file. Leave copy "
            "out, or pass adata.to_memory()."
        )
    source = adata if layer is None else open_matrix(adata, layer=layer)
    if layer is not None and source.feature_names != [str(name) for name in adata.var_names]:
        raise InputError(
            f"layer {layer!r} has other features than var. Select in adata.raw.to_adata() instead."
        )
    of_obs = METHODS[method].labels
    parameters = {
        name: BaseSelector.labels_in(adata, value) if name == of_obs else value
        for name, value in parameters.items()
    }
    selector = METHODS[method].estimator_class()(n_features_to_select, **parameters)
    selector._annotated = adata
    selector.fit(source)
    target = adata.copy() if copy else adata
    columns = columns_of_var(selector.ranking_, selector.scores_, selector.selected, key_added)
    for name, values in columns.items():
        target.var[name] = values
    settings = {**selector.get_params(deep=False), "layer": layer}
    target.uns[key_added] = {"method": method, "parameters": json.dumps(settings, default=_shown)}
    return target if copy else None


def _shown(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else f"an array of {np.shape(value)}"
