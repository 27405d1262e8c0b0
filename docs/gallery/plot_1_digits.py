"""
Which pixels of the digits
==========================

Twenty of 64 pixels, chosen without labels, and where they are in the image.
"""

from sklearn.datasets import load_digits

import bigfs

X = load_digits().data
selector = bigfs.MCFS(20, n_clusters=10).fit(X)
print(selector.to_frame().head())

# %%
# The best pixels are the darkest.
ax = bigfs.plot(selector).mask((8, 8))

# %%
# Rows by two principal components of the selected pixels.
ax = bigfs.plot(selector, X).map(labels=load_digits().target)
