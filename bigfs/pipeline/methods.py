"""The table of methods: all that the stages need to know of each.

A method is one entry: the settings its result depends on, the check of settings against the
data's shape, its cost, and the function that scores the features. Which sections of the
configuration it reads is said there (`bigfs.config.methods.SECTIONS`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bigfs.config import Config
from bigfs.core.cost import Shape, StageCost
from bigfs.core.errors import InputError
from bigfs.selectors import costs
from bigfs.selectors.eigengap import known_n_clusters
from bigfs.selectors.fsgmm.estimator import check_fsgmm, fsgmm_scores
from bigfs.selectors.gfs_kmeans.estimator import gfs_scores
from bigfs.selectors.laplacian_score.estimator import laplacian_scores
from bigfs.selectors.lfs.estimator import lfs_scores
from bigfs.selectors.m3fs.estimator import learn
from bigfs.selectors.m3fs.fit import Parameters
from bigfs.selectors.m3fs.starts import INITS, n_eigenvectors
from bigfs.selectors.max_variance.estimator import max_variance_scores
from bigfs.selectors.mcfs.estimator import mcfs_scores
from bigfs.selectors.ndfs.estimator import check_n_clusters, ndfs_scores
from bigfs.selectors.q_alpha.estimator import check_qalpha, qalpha_scores
from bigfs.selectors.spec.estimator import spec_scores
from bigfs.selectors.udfs.estimator import check_udfs, udfs_scores
from bigfs.selectors.udfs.kernels import gathered_rows
from bigfs.stages.context import Context
from bigfs.stages.scores import FeatureScores
from bigfs.store.labels import load_labels
from bigfs.store.scratch import Scratch

Settings = Callable[[Config], dict[str, Any]]
Check = Callable[[Config, "int | None", int], None]
Cost = Callable[[Config, Shape], StageCost]
Score = Callable[[Context, int, Scratch], FeatureScores]

# A memory limit that nothing exceeds.
_ANY = 2**62


def _nothing(config: Config) -> dict[str, Any]:
    return {}


def _anything(config: Config, n_samples: int | None, n_features: int) -> None:
    return None


@dataclass(frozen=True)
class Method:
    """What the stages know of a method.

    Attributes
    ----------
    score : callable
        ``score(context, n_features_to_select, out)`` returns the scores; what has a row for
        every sample goes into the folder ``out``.
    cost : callable
        ``cost(config, shape)`` of the same.
    settings : callable
        What its result depends on, besides the data and the stages before.
    check : callable
        ``check(config, n_samples, n_features)`` raises InputError for settings that the data do
        not allow; ``n_samples`` may be None. Whether it fits is the plan's business.
    starts : tuple of str
        What its ``init`` may be called; anything else names labels. Empty: it has none.
    n_components : callable or None
        How many eigenvectors it takes, or "auto".
    """

    score: Score
    cost: Cost
    settings: Settings = _nothing
    check: Check = _anything
    starts: tuple[str, ...] = ()
    n_components: Callable[[Config], int | str] | None = None


def _section(name: str, *, seeded: bool, limited: bool = True) -> Settings:
    """Return the settings of a method that depends on its own section.

    And, perhaps, on the seed; and on the memory limit, where that decides by which of several
    ways, equal but for rounding, the method goes.
    """

    def settings(config: Config) -> dict[str, Any]:
        values = getattr(config, name).model_dump()
        if seeded:
            values["random_state"] = config.random_state
        if limited:
            values["memory_limit"] = config.memory_limit
        return {name: values}

    return settings


def _mcfs(context: Context, n_selected: int, out: Scratch) -> FeatureScores:
    config = context.config
    return mcfs_scores(
        context.blocks,
        context.spectral,
        n_selected,
        fit_intercept=config.mcfs.fit_intercept,
        coef_scale=config.mcfs.coef_scale,
        memory_limit=config.memory_limit,
    )


def _mcfs_components(config: Config) -> int | str:
    return config.mcfs.n_components or config.mcfs.n_clusters


def _mcfs_cost(config: Config, shape: Shape) -> StageCost:
    wanted, m = _mcfs_components(config), config.n_features_to_select
    return costs.mcfs_cost(shape, wanted, m, config.memory_limit)


def _check_mcfs(config: Config, n_samples: int | None, n_features: int) -> None:
    wanted = _mcfs_components(config)
    if n_samples is not None and isinstance(wanted, int) and wanted >= n_samples:
        raise InputError(
            f"mcfs: n_clusters (n_components) must be below the {n_samples} samples. Got {wanted}."
        )


def _ndfs(context: Context, n_selected: int, out: Scratch) -> FeatureScores:
    config, blocks = context.config, context.blocks
    settings = config.ndfs.model_dump()
    init, n_clusters = settings.pop("init"), settings.pop("n_clusters")
    return ndfs_scores(
        blocks,
        context.affinity,
        context.spectral if init == "spectral" else load_labels(init, blocks.n_samples),
        n_clusters,
        **settings,
        random_state=config.random_state,
        memory_limit=config.memory_limit,
        out=out,
        checkpoint=context.checkpoint,
    )


def _ndfs_cost(config: Config, shape: Shape) -> StageCost:
    settings = config.ndfs
    return costs.ndfs_cost(
        shape,
        config.graph.n_neighbors,
        settings.n_clusters,
        settings.max_iter,
        config.memory_limit,
    )


def _check_ndfs(config: Config, n_samples: int | None, n_features: int) -> None:
    if n_samples is not None:
        check_n_clusters(known_n_clusters(config.ndfs.n_clusters), n_samples)


def _m3fs(context: Context, n_selected: int, out: Scratch) -> FeatureScores:
    config, blocks = context.config, context.blocks
    settings = config.m3fs.model_dump()
    graph, sample_size = settings.pop("graph"), settings.pop("sample_size")
    if settings["init"] not in INITS:
        settings["init"] = load_labels(settings["init"], blocks.n_samples)
    parameters = Parameters(
        **settings, random_state=config.random_state, memory_limit=config.memory_limit
    )
    return learn(
        blocks,
        n_selected,
        parameters,
        n_neighbors=config.graph.n_neighbors,
        sigma=config.graph.sigma,
        graph=graph,
        sample_size=sample_size,
        W=None if sample_size else context.affinity,
        spectral=None if config.spectral is None else context.spectral,
        out=out,
        checkpoint=context.checkpoint,
    )


def _m3fs_settings(config: Config) -> dict[str, Any]:
    own = _section("m3fs", seeded=True)(config)
    return {**own, "graph": config.graph.model_dump()}


def _m3fs_cost(config: Config, shape: Shape) -> StageCost:
    settings = config.m3fs
    return costs.m3fs_cost(
        shape,
        settings.n_clusters,
        fit_intercept=settings.fit_intercept,
        smoothness=settings.smoothness,
        max_iter=settings.max_iter,
        sample_size=settings.sample_size,
        n_neighbors=config.graph.n_neighbors,
        compares=settings.criterion == "likelihood",
        limit=config.memory_limit,
    )


def _check_m3fs(config: Config, n_samples: int | None, n_features: int) -> None:
    if n_samples is not None:
        check_n_clusters(known_n_clusters(config.m3fs.n_clusters), n_samples)


def _laplacian(context: Context, n_selected: int, out: Scratch) -> FeatureScores:
    return laplacian_scores(context.blocks, context.affinity)


def _spec(context: Context, n_selected: int, out: Scratch) -> FeatureScores:
    return spec_scores(context.blocks, context.affinity, context.config.spec.ranking)


def _edges_cost(config: Config, shape: Shape) -> StageCost:
    return costs.edges_cost(shape, config.graph.n_neighbors)


def _qalpha(context: Context, n_selected: int, out: Scratch) -> FeatureScores:
    config = context.config
    settings = config.q_alpha.model_dump()
    return qalpha_scores(context.blocks, **settings, memory_limit=config.memory_limit)


def _check_qalpha(config: Config, n_samples: int | None, n_features: int) -> None:
    check_qalpha(known_n_clusters(config.q_alpha.n_clusters), n_features, _ANY)


def _udfs(context: Context, n_selected: int, out: Scratch) -> FeatureScores:
    config = context.config
    settings = config.udfs.model_dump()
    return udfs_scores(context.blocks, context.graph, **settings, memory_limit=config.memory_limit)


def _udfs_cost(config: Config, shape: Shape) -> StageCost:
    k = config.graph.n_neighbors
    gathered = gathered_rows(shape.n_features, shape.itemsize, k)
    return costs.udfs_cost(shape, k, gathered, config.udfs.n_clusters, config.memory_limit)


def _check_udfs(config: Config, n_samples: int | None, n_features: int) -> None:
    check_udfs(known_n_clusters(config.udfs.n_clusters, 1), n_features, _ANY)


def _fsgmm(context: Context, n_selected: int, out: Scratch) -> FeatureScores:
    config = context.config
    return fsgmm_scores(
        context.blocks,
        **config.fsgmm.model_dump(),
        random_state=config.random_state,
        memory_limit=config.memory_limit,
        out=out,
        checkpoint=context.checkpoint,
    )


def _fsgmm_cost(config: Config, shape: Shape) -> StageCost:
    return costs.fsgmm_cost(shape, config.fsgmm.n_clusters, config.fsgmm.max_iter)


def _check_fsgmm(config: Config, n_samples: int | None, n_features: int) -> None:
    sizes = (config.fsgmm.n_clusters, config.fsgmm.min_clusters)
    check_fsgmm(*sizes, n_samples, n_features, _ANY)


def _lfs(context: Context, n_selected: int, out: Scratch) -> FeatureScores:
    n_clusters, settings = _search_settings(context, out)
    return lfs_scores(context.blocks, n_clusters, **settings, checkpoint=context.checkpoint)


def _lfs_cost(config: Config, shape: Shape) -> StageCost:
    settings = config.lfs
    return costs.lfs_cost(shape, settings.n_clusters, settings.sample_size, config.memory_limit)


def _gfs(context: Context, n_selected: int, out: Scratch) -> FeatureScores:
    n_clusters, settings = _search_settings(context, out)
    return gfs_scores(context.blocks, n_clusters, **settings)


def _gfs_cost(config: Config, shape: Shape) -> StageCost:
    settings = config.gfs_kmeans
    return costs.gfs_cost(shape, settings.n_clusters, settings.max_iter, config.memory_limit)


def _search_settings(context: Context, out: Scratch) -> tuple[Any, dict[str, Any]]:
    """Return the number of clusters and the other arguments of LFS or GFS-k-means."""
    config = context.config
    settings = getattr(config, config.method).model_dump()
    n_clusters, init = settings.pop("n_clusters"), settings.pop("init")
    return n_clusters, settings | {
        "init": init if init == "k-means++" else load_labels(init, context.blocks.n_samples),
        "random_state": config.random_state,
        "memory_limit": config.memory_limit,
        "out": out,
    }


METHODS: dict[str, Method] = {
    "mcfs": Method(
        _mcfs,
        _mcfs_cost,
        _section("mcfs", seeded=False),
        _check_mcfs,
        n_components=_mcfs_components,
    ),
    "ndfs": Method(
        _ndfs,
        _ndfs_cost,
        _section("ndfs", seeded=True),
        _check_ndfs,
        starts=("spectral",),
        n_components=lambda config: config.ndfs.n_clusters,
    ),
    "m3fs": Method(
        _m3fs,
        _m3fs_cost,
        _m3fs_settings,
        _check_m3fs,
        starts=INITS,
        n_components=lambda config: n_eigenvectors(config.m3fs.n_clusters),
    ),
    "max_variance": Method(
        lambda context, n_selected, out: max_variance_scores(context.blocks),
        lambda config, shape: costs.max_variance_cost(shape),
    ),
    "laplacian_score": Method(_laplacian, _edges_cost),
    "spec": Method(_spec, _edges_cost, _section("spec", seeded=False, limited=False)),
    "q_alpha": Method(
        _qalpha,
        lambda config, shape: costs.qalpha_cost(
            shape, config.q_alpha.n_clusters, config.memory_limit
        ),
        _section("q_alpha", seeded=False),
        _check_qalpha,
    ),
    "udfs": Method(_udfs, _udfs_cost, _section("udfs", seeded=False), _check_udfs),
    "fsgmm": Method(_fsgmm, _fsgmm_cost, _section("fsgmm", seeded=True), _check_fsgmm),
    "lfs": Method(_lfs, _lfs_cost, _section("lfs", seeded=True), starts=("k-means++",)),
    "gfs_kmeans": Method(
        _gfs, _gfs_cost, _section("gfs_kmeans", seeded=True), starts=("k-means++",)
    ),
}
