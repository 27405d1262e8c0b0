"""Draw the README's picture from a finished quickstart run.

bigfs run pipelines/quickstart.yaml
python -m tests.bench.figure_quickstart runs/quickstart pipelines/quickstart.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def draw(run: str | Path, target: str | Path) -> None:
    """Show the score of every pixel of the digits and mark the selected ones."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from sklearn.datasets import load_digits

    import bigfs

    result = bigfs.open_result(run)
    digits = load_digits()
    kept = np.zeros(64, dtype=bool)
    kept[result.selected] = True
    figure, axes = plt.subplots(1, 6, figsize=(10, 2.1), layout="constrained")
    axes[0].imshow(result.scores.reshape(8, 8), cmap="viridis")
    axes[0].set_title("score", fontsize=9)
    axes[1].imshow(kept.reshape(8, 8), cmap="gray")
    axes[1].set_title(f"{len(result.selected)} selected of 64", fontsize=9)
    for axis, digit in zip(axes[2:], (0, 3, 4, 9), strict=True):
        image = digits.images[np.flatnonzero(digits.target == digit)[0]]
        axis.imshow(np.where(kept.reshape(8, 8), image, np.nan), cmap="gray_r", vmin=0, vmax=16)
        axis.set_facecolor("#dfe8f3")
        axis.set_title(f"a {digit}, as kept", fontsize=9)
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.savefig(target, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    draw(*sys.argv[1:3])
