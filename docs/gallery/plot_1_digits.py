"""
Selecting pixels of the digits
==============================

This example selects 20 of 64 pixels without labels and shows where they are in the image.
"""

from sklearn.datasets import load_digits

import bigfs

X = load_digits().data
selector = bigfs.MCFS(20, n_clusters=10).fit(X)
print(selector.to_frame().head())

# %%
# The better a pixel, the darker it is drawn.
ax = bigfs.plot(selector).mask((8, 8))

# %%
# The rows, plotted by the first two principal components of the selected pixels.
ax = bigfs.plot(selector, X).map(labels=load_digits().target)
