"""The sections that not every method reads, and which ones each method does."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    Field,
    model_validator,
)

from bigfs.config.fields import CountOrAuto, PositiveFloat, PositiveInt, Section, count_or_auto

Method = Literal[
    "mcfs",
    "ndfs",
    "m3fs",
    "laplacian_score",
    "max_variance",
    "spec",
    "q_alpha",
    "udfs",
    "fsgmm",
    "lfs",
    "gfs_kmeans",
]


class GraphConfig(Section):
    """The nearest-neighbor graph of the samples."""

    n_neighbors: PositiveInt = Field(5, description="Neighbors of each sample.")
    metric: Literal["euclidean", "cosine", "correlation"] = Field(
        "euclidean", description="Distance between samples."
    )
    weight: Literal["binary", "heat", "dot", "cosine"] = Field(
        "binary", description="Weight of an edge: 1, exp(-distance^2 / sigma), x'y or cosine."
    )
    sigma: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="Width of the heat kernel, in units of squared distance (weight: heat "
        "only). null: the squared median neighbor distance.",
    )
    algorithm: Literal["auto", "exact", "pynndescent"] = Field(
        "auto", description="Neighbor search; auto is exact for small data."
    )
    representation: Annotated[str, Field(pattern=r"^(raw|pca:[1-9][0-9]*)$")] = Field(
        "raw",
        description="What samples are compared by: raw features, or pca:p, the first p principal "
        "components.",
    )
    eps: Annotated[float, Field(ge=0, le=10)] | None = Field(
        None,
        description="Where data are searched in parts: a sample also goes to parts whose center "
        "is within 1 + eps times the distance to its nearest. null: 0.1, or what recall_target "
        "asks for.",
    )
    recall_target: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="Share of the true neighbors to find, such as 0.99: the search is widened "
        "until the estimate's lower bound reaches it. null: the share is only measured.",
    )
    if_missed: Literal["error", "warn"] = Field(
        "error", description="What to do where recall_target cannot be reached."
    )

    @model_validator(mode="after")
    def _components_are_euclidean(self) -> GraphConfig:
        if self.representation != "raw" and self.metric != "euclidean":
            raise ValueError(
                f"representation '{self.representation}' needs metric 'euclidean', since "
                f"centering changes angles, and metric is '{self.metric}'; change one of them"
            )
        return self

    @model_validator(mode="after")
    def _sigma_belongs_to_heat(self) -> GraphConfig:
        if self.sigma is not None and self.weight != "heat":
            raise ValueError(
                f"sigma is the width of the heat kernel and weight is '{self.weight}', which "
                "would ignore it; set weight to 'heat' or remove sigma"
            )
        return self


class SpectralConfig(Section):
    """The eigenvectors of the graph."""

    solver: Literal["auto", "eigsh", "lobpcg", "chebyshev"] = Field(
        "auto",
        description="Eigensolver; chebyshev is the fastest for many rows. auto: eigsh where it "
        "fits and rows are few, chebyshev otherwise.",
    )
    tol: Annotated[float, Field(gt=0, lt=1)] = Field(
        1e-6, description="Largest residual of an eigenvector that is accepted."
    )


class MCFSConfig(Section):
    """Multi-cluster feature selection (Cai, Zhang, He, KDD 2010)."""

    n_clusters: CountOrAuto = Field(
        8,
        description="Number of groups expected in the data, roughly. auto: from the largest "
        "relative gap between the graph's eigenvalues.",
    )
    n_components: PositiveInt | None = Field(
        None, description="Eigenvectors to regress on the features. null: n_clusters."
    )
    fit_intercept: bool = Field(True, description="Center the features before the regressions.")
    coef_scale: Literal["none", "l1", "l2", "max"] = Field(
        "l2",
        description="Norm each eigenvector's coefficients are divided by; none is the paper's.",
    )

    @model_validator(mode="after")
    def _one_number_of_eigenvectors(self) -> MCFSConfig:
        if self.n_clusters == "auto" and self.n_components is not None:
            raise ValueError(
                "n_clusters 'auto' sets the number of eigenvectors, and n_components would "
                "override it; remove one of them"
            )
        return self


class NDFSConfig(Section):
    """Non-negative discriminative feature selection (Li, Yang, Liu, Zhou, Lu, AAAI 2012)."""

    n_clusters: CountOrAuto = Field(
        8,
        description="Number of groups expected in the data; auto: the largest gap of the graph's "
        "eigenvalues.",
    )
    alpha: Annotated[float, Field(ge=0)] = Field(
        1.0, description="Weight of the regression on the features against the graph."
    )
    beta: PositiveFloat = Field(
        1.0, description="Weight of the penalty that empties features; in units of the values."
    )
    gamma: PositiveFloat = Field(10.0, description="Weight of the clusters' orthogonality.")
    update: Literal["safe", "printed"] = Field(
        "safe", description="Update whose objective never rises, or the paper's eq. (15)."
    )
    init: str = Field(
        "spectral",
        min_length=1,
        description="Start: k-means on the graph's eigenvectors (spectral), or labels as in "
        "evaluate.labels, from 0 to n_clusters - 1.",
    )
    max_iter: PositiveInt = Field(30, description="Most iterations, each a pass over the data.")
    tol: Annotated[float, Field(ge=0, lt=1)] = Field(
        1e-5, description="Stop when the objective changes by less than this share."
    )

    @model_validator(mode="after")
    def _auto_needs_eigenvalues(self) -> NDFSConfig:
        if self.n_clusters == "auto" and self.init != "spectral":
            raise ValueError(
                "n_clusters 'auto' is chosen from the eigenvalues of init 'spectral'; give the "
                "number of clusters that the labels have"
            )
        return self


class M3FSConfig(Section):
    """Manifold-based maximum margin feature selection (Zhao, Kwok, Wang, Zhang, CVPR 2009)."""

    n_clusters: count_or_auto(2, 254) = Field(  # type: ignore[valid-type]
        2,
        description="Number of groups expected in the data; auto: the largest gap of the graph's "
        "eigenvalues.",
    )
    C: PositiveFloat = Field(10.0, description="Weight of the loss against the margin.")
    smoothness: Annotated[float, Field(ge=0)] = Field(
        1.0, description="Weight of smoothness on the graph, per sample; the paper's lambda."
    )
    balance: Annotated[float, Field(ge=0)] | None = Field(
        0.1, description="Largest mean decision value, or difference of them. null: no bound."
    )
    graph: Literal["knn", "full"] = Field(
        "knn", description="Pairs that smoothness counts: neighbors, or all (few samples only)."
    )
    epsilon: PositiveFloat = Field(
        0.01, description="No plane is violated by more than this at the end."
    )
    fit_intercept: bool = Field(True, description="An intercept for every cluster.")
    init: str = Field(
        "auto",
        min_length=1,
        description="Start: k-means (kmeans), k-means on the graph's eigenvectors (spectral), "
        "both (auto), or labels as in evaluate.labels, from 0 to n_clusters - 1.",
    )
    n_init: PositiveInt = Field(3, description="Restarts of k-means.")
    criterion: Literal["likelihood", "objective"] = Field(
        "likelihood",
        description="Which start to believe: the one whose clusters describe the samples best, "
        "each as a Gaussian, or the one of the least objective.",
    )
    nesting: Literal["clusters_outside", "planes_outside"] = Field(
        "clusters_outside", description="Outer loop; planes_outside is the paper's."
    )
    sample_size: Annotated[int, Field(ge=2)] | None = Field(
        None, description="Learn on so many samples and label the others. null: on all."
    )
    max_iter: PositiveInt = Field(
        1000, description="Most cone programs for a start, each with a pass over the data."
    )
    tol: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.01, description="The clusters stand when the objective falls by less than this share."
    )

    @property
    def takes_eigenvectors(self) -> bool:
        """Whether the run has a stage of eigenvectors; a sample's are found where it is."""
        return self.init in ("auto", "spectral") and self.sample_size is None


class SPECConfig(Section):
    """Spectral feature selection (Zhao, Liu, ICML 2007)."""

    ranking: Literal["phi1", "phi2", "phi3"] = Field(
        "phi2", description="Ranking function of the paper; phi2 is the Laplacian score."
    )


class QAlphaConfig(Section):
    """Q-alpha feature weights (Wolf, Shashua, JMLR 2005)."""

    n_clusters: CountOrAuto = Field(
        8, description="Leading eigenvalues that count; auto: clusters by the graph's eigengap."
    )
    max_iter: PositiveInt = Field(100, description="Most iterations; they need no pass.")
    tol: Annotated[float, Field(ge=0, lt=1)] = Field(
        1e-8, description="Stop when no weight changes by more."
    )


class GFSKMeansConfig(Section):
    """Global feature selection around k-means (Dy, Brodley, JMLR 2004), backward."""

    n_clusters: count_or_auto(1, 60) = Field(  # type: ignore[valid-type]
        8,
        description="Number of groups expected in the data; auto: the largest gap of a neighbor "
        "graph's eigenvalues.",
    )
    init: str = Field(
        "k-means++",
        min_length=1,
        description="Start: the best of n_init searches from k-means++, or labels as in "
        "evaluate.labels, from 0 to n_clusters - 1.",
    )
    n_init: PositiveInt = Field(10, description="Searches from k-means++, on 5,000 samples each.")
    max_iter: PositiveInt = Field(100, description="Most iterations of k-means for a candidate.")
    tol: Annotated[float, Field(ge=0)] = Field(
        1e-3, description="k-means stops when centers move less than this share of their extent."
    )


class LFSConfig(GFSKMeansConfig):
    """Localized feature selection (Li, Dong, Hua, Pattern Recognition Letters 2008)."""

    alpha: Annotated[float, Field(ge=0)] = Field(
        4.0, description="Price of samples in several clusters; 1 in the paper."
    )
    beta: Annotated[float, Field(ge=0)] = Field(
        4.0, description="Price of samples in no cluster; 1 or 6 in the paper."
    )
    tie_width: Annotated[float, Field(ge=0)] = Field(
        2.0,
        description="Losses within this many standard errors are ties, which fewer features win. "
        "0: the paper's rule, better where samples are few.",
    )
    drop: Literal["one", "many"] = Field(
        "one", description="Features to try without at a time; many is faster for many features."
    )
    sample_size: Annotated[int, Field(ge=4)] | None = Field(
        None, description="Search on so many samples and label all at the end. null: on all."
    )
    unassigned: Literal["nearest", "leave"] = Field(
        "nearest", description="Samples of no cluster: take the nearest, or leave them (-1)."
    )


class UDFSConfig(Section):
    """Unsupervised discriminative feature selection (Yang et al., IJCAI 2011)."""

    n_clusters: CountOrAuto = Field(
        8, description="Columns of the projection; auto: clusters by the graph's eigengap."
    )
    gamma: Annotated[float, Field(ge=0)] = Field(
        0.1, description="Weight of the penalty that empties features."
    )
    ridge: PositiveFloat = Field(
        1.0, description="Added to the products of each neighborhood's samples (lambda)."
    )
    max_iter: PositiveInt = Field(30, description="Most iterations; they need no pass.")
    tol: Annotated[float, Field(ge=0, lt=1)] = Field(
        1e-5, description="Stop when the objective changes by less than this share."
    )


class FSGMMConfig(Section):
    """Mixture of Gaussians with feature saliency (Law, Figueiredo, Jain, TPAMI 2004)."""

    n_clusters: PositiveInt = Field(30, description="Components at the start.")
    min_clusters: PositiveInt = Field(
        1, description="Fewest components tried; n_clusters: their number is fixed."
    )
    max_iter: PositiveInt = Field(500, description="Most passes over the data.")
    tol: Annotated[float, Field(ge=0, lt=1)] = Field(
        1e-5, description="A component leaves when the message length changes by less."
    )


# The sections that not every method reads, and which ones each method does.
METHOD_SECTIONS: dict[str, type[Section]] = {
    "mcfs": MCFSConfig,
    "ndfs": NDFSConfig,
    "m3fs": M3FSConfig,
    "spec": SPECConfig,
    "q_alpha": QAlphaConfig,
    "udfs": UDFSConfig,
    "fsgmm": FSGMMConfig,
    "lfs": LFSConfig,
    "gfs_kmeans": GFSKMeansConfig,
    "graph": GraphConfig,
    "spectral": SpectralConfig,
}
SECTIONS: dict[str, tuple[str, ...]] = {
    "mcfs": ("mcfs", "graph", "spectral"),
    "ndfs": ("ndfs", "graph", "spectral"),
    "m3fs": ("m3fs", "graph", "spectral"),
    "laplacian_score": ("graph",),
    "max_variance": (),
    "lfs": ("lfs",),
    "gfs_kmeans": ("gfs_kmeans",),
    "spec": ("spec", "graph"),
    "q_alpha": ("q_alpha",),
    "udfs": ("udfs", "graph"),
    "fsgmm": ("fsgmm",),
}
