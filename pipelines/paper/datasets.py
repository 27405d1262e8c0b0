"""The data sets of a paper: from a folder, from scikit-learn, or made as the paper says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError
from bigfs.core.seeds import rng
from bigfs.store.fingerprint import fingerprint
from bigfs.store.labels import load_labels
from bigfs.store.location import as_location
from bigfs.store.source import Source, open_matrix
from pipelines.paper.settings import PaperTable, SetConfig

LOCALIZED = "generated:localized"


def why_unavailable(config: PaperTable, dataset: SetConfig) -> str | None:
    """Return why a set cannot be run, or None."""
    if dataset.uri is None:
        return dataset.unavailable
    if dataset.uri.startswith(("sklearn:", "generated:")):
        return None
    if config.data is None:
        raise InputError(
            f"{dataset.name}: the table reads {dataset.uri} from a folder of data sets. Say which: "
            "--set data=FOLDER."
        )
    folder = as_location(config.data)
    if not folder.is_dir():
        raise InputError(f"data: {config.data} is not a folder. Give the folder of the data sets.")
    path = folder / dataset.uri
    return None if path.exists() else f"{dataset.uri} is not in the data folder"


def content_key(config: PaperTable, dataset: SetConfig) -> str:
    """Return a key of the content of a set."""
    return dataset.uri if dataset.uri == LOCALIZED else fingerprint(set_uri(config, dataset))


def check_set(config: PaperTable, dataset: SetConfig) -> tuple[int, int]:
    """Return rows and features that a trial of a set has.

    Raises
    ------
    InputError
        If the set cannot be read, or is not what its settings say.
    """
    if dataset.uri == LOCALIZED:
        return 400, 4
    source, y = _open(config, dataset)
    n_classes = int(y.max()) + 1
    wrong = [k for k in dataset.n_classes or [] if k > n_classes]
    wrong += [k for k in dataset.classes or [] if k >= n_classes]
    if wrong:
        raise InputError(f"{dataset.name} has {n_classes} classes. Got {wrong[0]}.")
    n_samples = dataset.sample.rows if dataset.sample else len(y)
    if n_samples > len(y):
        raise InputError(f"{dataset.name} has {len(y)} rows. Got {n_samples} for sample.rows.")
    if dataset.pool is None:
        return n_samples, source.n_features
    if source.n_features != dataset.pool.height * dataset.pool.width:
        raise InputError(
            f"{dataset.name}: pool takes images of {dataset.pool.height} x {dataset.pool.width} "
            f"pixels, and the rows have {source.n_features} values."
        )
    return n_samples, _pooled(np.zeros((1, source.n_features)), dataset).shape[1]


def load_set(config: PaperTable, dataset: SetConfig) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield X and y of a data set, or of each draw of rows."""
    draws = dataset.sample.draws if dataset.sample else 1
    seeds = (rng(config.random_state, f"rows of {dataset.name}", draw) for draw in range(draws))
    if dataset.uri == LOCALIZED:
        for generator in seeds:
            X, y = localized_clusters(generator)
            yield _scaled(X, config, dataset), y
        return
    source, y = _open(config, dataset)
    source.begin()
    X = np.concatenate(list(source.iter_blocks(10_000)))
    source.check_unchanged()
    if dataset.classes is not None:
        kept = np.isin(y, dataset.classes)
        X, y = X[kept], np.unique(y[kept], return_inverse=True)[1]
    if dataset.pool is not None:
        X = _pooled(X, dataset)
    if dataset.sample is None:
        yield _scaled(X, config, dataset), y
        return
    for generator in seeds:
        rows = np.sort(generator.choice(len(X), dataset.sample.rows, replace=False))
        yield _scaled(X, config, dataset)[rows], np.unique(y[rows], return_inverse=True)[1]


def localized_clusters(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return four clusters of 100 rows in four features, each of them in two (LFS paper, 2.1)."""
    means = [[0.5, -0.5, 0, 0], [-0.5, -0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0.5, -0.5, 0]]
    deviations = [[0.2, 0.2, 0.6, 0.6]] * 2 + [[0.6, 0.2, 0.2, 0.6]] * 2
    noise = generator.normal(size=(400, 4))
    y = np.repeat(np.arange(4), 100)
    return np.array(means)[y] + np.array(deviations)[y] * noise, y


def set_uri(config: PaperTable, dataset: SetConfig) -> str:
    """Return where the data of a set are."""
    uri = dataset.uri or ""
    return uri if uri.startswith("sklearn:") else str(as_location(config.data or "") / uri)


def _open(config: PaperTable, dataset: SetConfig) -> tuple[Source, np.ndarray]:
    uri = set_uri(config, dataset)
    source = open_matrix(uri, variable="X" if uri.endswith(".npz") else None)
    return source, load_labels(uri, source.n_samples)


def _scaled(X: np.ndarray, config: PaperTable, dataset: SetConfig) -> np.ndarray:
    X = X.astype(np.float64)
    if config.scale == "maximum":
        X /= X.max()
    kind = dataset.preprocess or config.preprocess
    if kind == "none":
        return X
    blocks = RowBlocks.from_any(X, transform=kind)  # a reader alone does not keep X
    scaled: np.ndarray = blocks.start_pass().read(0, len(X))
    return scaled


def _pooled(X: np.ndarray, dataset: SetConfig) -> np.ndarray:
    assert dataset.pool is not None
    height, width, by = dataset.pool.height, dataset.pool.width, dataset.pool.by
    images = X.reshape(len(X), height // by, by, width // by, by)
    pooled: np.ndarray = images.mean(axis=(2, 4))
    return pooled.reshape(len(X), -1)
