"""
Selecting bands of spectra and of a cube
========================================

The data are mixtures of five smooth curves at 200 wavelengths. Neighboring bands carry the same
information, so ``redundancy`` is used to skip bands that are too similar to a better one.
"""

import numpy as np
import pandas as pd
import xarray as xr

import bigfs

rng = np.random.default_rng(0)
wavelengths = np.linspace(400, 1000, 200)
centers = np.array([450, 550, 650, 800, 950])
curves = np.exp(-(((wavelengths - centers[:, None]) / 60) ** 2))
X = rng.dirichlet(np.ones(5), 600) @ curves + 0.01 * rng.normal(size=(600, 200))
spectra = pd.DataFrame(X, columns=[f"{w:.0f}" for w in wavelengths])

selector = bigfs.MCFS(8, n_clusters=5, redundancy=0.95).fit(spectra)
print(selector.get_feature_names_out())

# %%
# The scores along the wavelength axis, which is given by the column names. The mean spectrum is
# shown in gray.
ax = bigfs.plot(selector, spectra).spectrum(wavelengths, unit="nm")

# %%
# The same rows as a cube with dimensions (y, x, band). ``features`` names the dimension of the
# features.
cube = xr.DataArray(X.reshape(20, 30, 200), dims=("y", "x", "band"))
of_cube = bigfs.MCFS(8, n_clusters=5, redundancy=0.95)
of_cube.fit(bigfs.open_matrix(cube, features="band"))
assert (of_cube.selected == selector.selected).all()
