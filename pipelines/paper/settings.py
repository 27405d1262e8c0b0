"""The settings of a paper's table: its data sets, its protocol, and the values it reports."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bigfs.config.comparison import Entry, Methods, Sizes
from bigfs.config.fields import PositiveInt, Section
from bigfs.config.selection import Transforms, section_models
from bigfs.core.text import quoted, shown

Score = Literal["nmi", "acc", "rand", "majority", "error", "nearest_neighbor_error"]
ALL_FEATURES = "all_features"
# Scores that a protocol does not report.
_NOT_REPORTED: dict[str, tuple[Score, ...]] = {
    "draws": (),
    "grid": ("error", "nearest_neighbor_error"),
    "labels": ("nearest_neighbor_error",),
}
# Settings that take the number of classes: where there is a fewest number, it is that too.
_CLUSTERS = ("n_clusters", "min_clusters")


class SampleConfig(Section):
    """Some of the rows, drawn several times."""

    rows: PositiveInt = Field(description="Rows of each draw.")
    draws: PositiveInt = Field(description="Draws; values are means over them.")


class PoolConfig(Section):
    """Images made smaller: the mean of squares of pixels."""

    height: PositiveInt = Field(description="Rows of pixels.")
    width: PositiveInt = Field(description="Pixels of a row.")
    by: PositiveInt = Field(description="Side of a square that becomes one pixel.")

    @model_validator(mode="after")
    def _squares_fill_the_image(self) -> PoolConfig:
        if self.height % self.by or self.width % self.by:
            raise ValueError(f"squares of {self.by} do not fill {self.height} x {self.width}")
        return self


class SetConfig(Section):
    """A data set of the paper and what the paper says of it."""

    name: str = Field(min_length=1, description="As the table shows it.")
    uri: str | None = Field(
        None,
        description="File in the data folder, sklearn:NAME, or generated:localized, the four "
        "clusters of the LFS paper. null: see unavailable.",
    )
    unavailable: str | None = Field(None, description="Why there is no data for these rows.")
    classes: list[int] | None = Field(None, description="Only rows of these classes. null: all.")
    pool: PoolConfig | None = Field(None, description="Make images smaller. null: do not.")
    sample: SampleConfig | None = Field(None, description="Draw some of the rows. null: all.")
    n_classes: Annotated[list[PositiveInt], Field(min_length=1)] | None = Field(
        None, description="Numbers of classes drawn at random; the last is all of them."
    )
    n_features_to_select: Sizes | None = Field(
        None, description="Numbers of features to keep. null: those of the table."
    )
    preprocess: Transforms | None = Field(None, description="null: that of the table.")
    settings: dict[str, Any] = Field(
        {}, description="Settings of methods on this set, by dotted names, such as ndfs.beta: 10."
    )
    paper: dict[str, dict[Score, Any]] = Field(
        description="The paper's values in percent: method, score, and a value, or one for each "
        "of n_classes; of the first n_features_to_select."
    )

    @model_validator(mode="after")
    def _values_fit_the_cases(self) -> SetConfig:
        if (self.uri is None) == (self.unavailable is None):
            raise ValueError(
                f"{self.name}: give either uri or, where there is no data, unavailable"
            )
        n_cases = len(self.n_classes or [None])
        for method, scores in self.paper.items():
            for score, values in scores.items():
                listed = values if isinstance(values, list) else [values]
                numbers = all(v is None or type(v) in (int, float) for v in listed)
                if not numbers or len(listed) not in (1, n_cases):
                    raise ValueError(
                        f"{self.name}, {method}, {score}: takes a number, or one for each of the "
                        f"{n_cases} cases. Got {shown(values)}"
                    )
        return self

    def value(self, method: str, score: Score, case: int) -> float | None:
        """Return the paper's value of a case; a single value is that of the last case."""
        values = self.paper.get(method, {}).get(score)
        listed = values if isinstance(values, list) else [values]
        last = len(self.n_classes or [None]) - 1
        value = listed[case] if len(listed) > 1 else listed[0] if case == last else None
        return None if value is None else float(value)


class PaperTable(Methods):
    """A paper's table by its protocol."""

    title: str = Field(min_length=1, description="First line of the table.")
    protocol: Literal["draws", "grid", "labels"] = Field(
        description="draws: on random subsets of the classes, the selection redone in each "
        "(MCFS). grid: the best over settings and numbers of features (NDFS). labels: the "
        "clusters of the method itself, or of k-means where it has none (M3FS, LFS)."
    )
    data: str | None = Field(None, description="Folder of the data sets: --set data=FOLDER.")
    scale: Literal["none", "maximum"] = Field(
        "none", description="Divide all values by their maximum."
    )
    preprocess: Transforms = Field("none", description="Applied to the values as they are read.")
    scores: Annotated[list[Score], Field(min_length=1)] = Field(description="What is reported.")
    n_draws: PositiveInt = Field(20, description="Draws of classes (protocol: draws).")
    n_repetitions: PositiveInt = Field(1, description="Runs of k-means that are averaged.")
    n_init: PositiveInt = Field(1, description="Starts of each; the best by inertia counts.")
    init: Literal["k-means++", "random"] = Field("random", description="First centers.")
    not_run: dict[str, str] = Field(
        {}, description="Methods of the paper that are not run here, and why."
    )
    only: list[str] | None = Field(None, description="Run these data sets only. null: all.")
    sets: Annotated[list[SetConfig], Field(min_length=1)] = Field(description="The data sets.")

    @model_validator(mode="after")
    def _scores_are_of_the_protocol(self) -> PaperTable:
        wrong = [score for score in self.scores if score in _NOT_REPORTED[self.protocol]]
        if wrong:
            raise ValueError(f"scores: protocol '{self.protocol}' does not report {quoted(wrong)}")
        return self

    @model_validator(mode="after")
    def _names_are_known(self) -> PaperTable:
        names = [dataset.name for dataset in self.sets]
        sections = section_models(self.pipeline.methods)
        for dataset in self.sets:
            wrong = [k for k in dataset.settings if k.partition(".")[0] not in sections]
            if wrong:
                raise ValueError(f"{dataset.name}: settings: {quoted(wrong)} belongs to no method")
        unknown = [name for name in self.only or [] if name not in names]
        if unknown:
            raise ValueError(f"only: {quoted(unknown)} is not one of the sets {quoted(names)}")
        methods = {entry.name for entry in self.entries(self.sets[0])} | {ALL_FEATURES}
        methods |= set(self.not_run)
        for dataset in self.sets:
            self.entries(dataset)
            for method in dataset.paper:
                if method not in methods:
                    raise ValueError(
                        f"{dataset.name}: the paper's values name '{method}', which is not one of "
                        f"the methods {quoted(sorted(methods))}"
                    )
        return self

    def sizes(self, dataset: SetConfig) -> list[int]:
        """Return the numbers of features to keep of a set."""
        return dataset.n_features_to_select or self.n_features_to_select

    def entries(self, dataset: SetConfig, n_clusters: int | None = None) -> list[Entry]:
        """Return the methods on a set, each with all points of its grid.

        The number of clusters goes to the methods that have such a setting and do not give it.
        """
        common = {} if n_clusters is None else dict.fromkeys(_CLUSTERS, n_clusters)
        m = max(self.sizes(dataset))
        expanded: list[Entry] = []
        for entry in self.methods:
            source = {"uri": dataset.uri or "none"}
            expanded += self._expand(entry, source, m, common=common, above=dataset.settings)
        return expanded
