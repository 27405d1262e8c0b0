"""Sections of the former run that is updated, and of what is written beside a result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from bigfs.config.fields import Fraction, PositiveInt, Section, Share


class UpdateConfig(Section):
    """Limits within which a finished run of the series is updated instead of done again."""

    most_new: Share = Field(
        0.1, description="Largest share of rows that are new; above it, all is done again."
    )
    most_since_full: Share = Field(
        0.5, description="Largest share of rows that are new since all was done last."
    )
    most_in_a_row: PositiveInt = Field(
        30, description="Most updates in a row; then all is done again."
    )
    least_recall: Fraction = Field(
        0.9, description="Least recall of an updated graph; below it, it is built again."
    )
    most_residual: Fraction = Field(
        2e-5,
        description="Largest residual of an updated eigenvector; or spectral.tol, where that is "
        "larger. Eigenvalues are off by about its square, divided by the gap to the next.",
    )


class ReportConfig(Section):
    """The page that `bigfs run` writes at the end."""

    image_shape: Annotated[list[PositiveInt], Field(min_length=2, max_length=2)] | None = Field(
        None, description="Rows and columns, where features are the pixels of an image."
    )
    axis: Annotated[str, AfterValidator(lambda file: str(Path(file).absolute()))] | None = Field(
        None,
        min_length=1,
        description="A number for each feature, such as its wavelength: text, or an array or a "
        "column, named as labels are (FILE.npy, scene.nc::wavelength).",
    )


class OutputConfig(Section):
    """Outputs of a run beside its result."""

    anndata: bool = Field(
        False,
        description="A copy of the AnnData that was read, in the folder annotated.zarr of the run, "
        "with bigfs_rank, bigfs_score and bigfs_selected in its var.",
    )
    diff_below: Share | None = Field(
        None,
        description="With update: auto, exit code 6 if less than this share of the selection is "
        "that of the former run of the series. null: never.",
    )
    metrics: str | None = Field(
        None,
        min_length=1,
        description="File that gets rows, seconds, memory, recall and the share of the former "
        "selection in the text format of Prometheus when a run ends. null: none.",
    )
