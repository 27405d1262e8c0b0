"""The stage of `output.anndata`: a copy of the input with the result in its ``var``."""

from __future__ import annotations

from pathlib import Path

from bigfs.config import Config
from bigfs.core.errors import InputError
from bigfs.results.annotate import check_annotatable, columns_of_var, copy_annotated
from bigfs.stages.curves import selected_features
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs, Stage, unplanned_stage
from bigfs.store.location import files_below, is_remote
from bigfs.store.scratch import Scratch


def check_output(config: Config) -> None:
    """Raise InputError if an annotated copy is wanted of what is no AnnData on a local disk."""
    if not config.output.anndata:
        return
    check_annotatable(config.input.uri)
    if is_remote(config.run):
        raise InputError(
            "output.anndata: true writes to a local disk, and the run directory is in a bucket. "
            "Set it to false, and let 'bigfs export RUN cells.h5ad --annotate' write a copy."
        )


def output_stages(config: Config) -> list[Stage]:
    """Return the stage of the annotated copy, if it is wanted."""
    if not config.output.anndata:
        return []
    source = check_annotatable(config.input.uri)

    def copy(inputs: Inputs, out: Scratch) -> None:
        scores = FeatureScores.open(inputs.finished["result"])
        assert isinstance(out.path, Path)
        files = files_below(source) if source.is_dir() else {"": (source.stat().st_size, 0)}
        out.check_free("annotated", sum(size for size, _ in files.values()))
        columns = columns_of_var(scores.ranking, scores.scores, selected_features(inputs.finished))
        names = inputs.blocks.source.feature_names
        copy_annotated(source, out.path / source.name, names, columns)
        out.describe(copy=source.name)

    return [unplanned_stage("annotated", 1, {}, copy, sparse=True)]
