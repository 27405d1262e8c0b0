"""The public names and their types, for type checkers and editors; a test holds them complete."""

from bigfs import metrics as metrics
from bigfs.graph import knn_graph as knn_graph
from bigfs.graph.transformer import KNeighborsTransformer as KNeighborsTransformer
from bigfs.pipeline.compare import compare as compare
from bigfs.pipeline.run import run as run
from bigfs.pipeline.table import RankSummary as RankSummary
from bigfs.results.export import to_grid as to_grid
from bigfs.results.plots import plot as plot
from bigfs.results.result import open_result as open_result
from bigfs.selectors.annotate import select as select
from bigfs.selectors.fsgmm.estimator import FSGMM as FSGMM
from bigfs.selectors.gfs_kmeans.estimator import GFSKMeans as GFSKMeans
from bigfs.selectors.highly_variable.estimator import HighlyVariable as HighlyVariable
from bigfs.selectors.lfs.estimator import LFS as LFS
from bigfs.selectors.m3fs.estimator import M3FS as M3FS
from bigfs.selectors.m3fs.estimator import MaximumMarginClustering as MaximumMarginClustering
from bigfs.selectors.mcfs.estimator import MCFS as MCFS
from bigfs.selectors.ndfs.estimator import NDFS as NDFS
from bigfs.selectors.one_pass.estimator import SPEC as SPEC
from bigfs.selectors.one_pass.estimator import LaplacianScore as LaplacianScore
from bigfs.selectors.one_pass.estimator import MaxVariance as MaxVariance
from bigfs.selectors.one_pass.estimator import QAlpha as QAlpha
from bigfs.selectors.one_pass.estimator import RandomSelection as RandomSelection
from bigfs.selectors.picks.estimator import ColumnSubset as ColumnSubset
from bigfs.selectors.picks.estimator import PivotedQR as PivotedQR
from bigfs.selectors.stability.estimator import StabilitySelection as StabilitySelection
from bigfs.selectors.udfs.estimator import UDFS as UDFS
from bigfs.spectral import spectral_embedding as spectral_embedding
from bigfs.store.ingest import ingest as ingest
from bigfs.store.source import open_matrix as open_matrix

__version__: str
