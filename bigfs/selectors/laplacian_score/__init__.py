"""LaplacianScore: features that vary little along the edges of the neighbor graph."""

from bigfs.selectors.method import Method, needs_graph

METHOD = Method(
    "laplacian_score",
    "LaplacianScore",
    __name__,
    needs=needs_graph,
    sparse=True,
)
