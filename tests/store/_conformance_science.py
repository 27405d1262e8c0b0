"""Files of science for `_conformance`: xarray's, AnnData, 10x, loom, MuData, other HDF5."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np

from tests.store._conformance import Own, case

_XARRAY, _ANNDATA = ("xarray", "h5netcdf"), ("anndata",)
_BANDS = [400.1, 410.5, 420.25, 430.0]


def _packed(shape: tuple[int, ...], **options: Any) -> Any:
    """Return a data set that xarray packs: whole numbers with a scale, and missing values."""
    import xarray as xr

    values = np.random.default_rng(0).integers(0, 900, shape) * 0.5
    values.reshape(-1, shape[-1])[3, 1] = np.nan
    dims = ("y", "x", "band")[3 - len(shape) :]
    about = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -999, **options}
    data = xr.Dataset({"X": (dims, values)}, {"band": np.array(_BANDS, np.float32)})
    data["X"].encoding = {name: value for name, value in about.items() if value is not None}
    return data


def _text(values: Any) -> list[str]:
    """Return coordinates as a person would write them."""
    import pandas as pd

    values = np.asarray(values)
    if values.dtype.kind == "M":
        return list(pd.Index(values).astype(str))
    return [str(value) for value in values]


def _own_xarray(read: Any, variable: str = "X", feature: str = "band", **options: Any) -> Own:
    with read as data:
        array = data[variable].transpose(..., feature)
        names = _text(array[feature].values) if feature in array.coords else None
        return Own(array.values.reshape(-1, array.shape[-1]), names, **options)


def _netcdf(name: str, data: Any, engine: str = "h5netcdf", **options: Any) -> Any:
    def make(folder: Path) -> tuple[Path, Own]:
        import xarray as xr

        data().to_netcdf(folder / name, engine=engine, **options)
        return folder / name, _own_xarray(xr.open_dataset(folder / name, engine=engine))

    return make


for _name in ("X.nc", "X.nc4", "X.h5", "X.hdf5", "X.he5"):
    case(f"NetCDF 2-D as {_name}", needs=_XARRAY)(_netcdf(_name, lambda: _packed((9, 4))))
for _name in ("X.nc", "X.h5"):
    case(f"NetCDF 3-D as {_name}", needs=_XARRAY, features="band")(
        _netcdf(_name, lambda: _packed((5, 3, 4)))
    )
case("NetCDF 3", needs=_XARRAY)(_netcdf("X.nc", lambda: _packed((9, 4)), "scipy"))


def _zarr(zarr_format: int, data: Any, **options: Any) -> Any:
    def make(folder: Path) -> tuple[Path, Own]:
        import xarray as xr

        data().to_zarr(folder / "X.zarr", zarr_format=zarr_format, consolidated=False)
        read = xr.open_zarr(folder / "X.zarr", consolidated=False)
        return folder / "X.zarr", _own_xarray(read, **options)

    return make


_FLOATS: dict[str, Any] = {"dtype": "float32", "scale_factor": None, "_FillValue": -999.0}
for _version in (2, 3):
    case(f"zarr v{_version} of xarray, 2-D", needs=_XARRAY)(
        _zarr(_version, lambda: _packed((9, 4)))
    )
    case(f"zarr v{_version} of xarray, 3-D", needs=_XARRAY, features="band")(
        _zarr(_version, lambda: _packed((5, 3, 4)))
    )
    case(f"zarr v{_version} of xarray, floats", needs=_XARRAY, features="band")(
        _zarr(_version, lambda: _packed((5, 3, 4), **_FLOATS))
    )


def _unsigned(shape: tuple[int, ...]) -> Any:
    """Return bytes above 127 as the GOES satellites store them."""
    import xarray as xr

    values = np.random.default_rng(0).integers(120, 140, shape).astype(np.uint8)
    dims = ("y", "x", "band")[3 - len(shape) :]
    data = xr.Dataset({"X": (dims, values.view(np.int8), {"_Unsigned": "true"})})
    data["X"].attrs["_FillValue"] = np.int8(-1)
    return data.assign_coords(band=_BANDS)


case("NetCDF of unsigned bytes, 2-D", needs=_XARRAY)(_netcdf("X.nc", lambda: _unsigned((9, 4))))
case("NetCDF of unsigned bytes", needs=_XARRAY, features="band")(
    _netcdf("X.nc", lambda: _unsigned((5, 3, 4)))
)
case("zarr of unsigned bytes", needs=_XARRAY, features="band")(
    _zarr(2, lambda: _unsigned((5, 3, 4)))
)


@case("NetCDF with two missing values", needs=_XARRAY, features="band")
def _two_missing(folder: Path) -> tuple[Path, Own]:
    import xarray as xr

    values = np.random.default_rng(0).integers(0, 9, (5, 3, 4)).astype(np.int16)
    about = {"_FillValue": np.int16(3), "missing_value": np.array([5, 7], np.int16)}
    data = xr.Dataset({"X": (("y", "x", "band"), values, about)}, {"band": _BANDS})
    data.to_netcdf(folder / "X.nc", engine="h5netcdf")
    with xr.open_dataset(folder / "X.nc", mask_and_scale=False) as raw:
        held = raw["X"].values
    masked = np.where(np.isin(held, (3, 5, 7)), np.nan, held)
    return folder / "X.nc", Own(masked.reshape(15, 4), _text(_BANDS))


@case(
    "NetCDF with several scales", needs=_XARRAY, features="band", refused="scale_factor",
)  # fmt: skip
def _two_scales(folder: Path) -> tuple[Path, None]:
    import xarray as xr

    values = np.ones((5, 3, 4), np.int16)
    data = xr.Dataset({"X": (("y", "x", "band"), values, {"scale_factor": [0.5, 2.0]})})
    data.to_netcdf(folder / "X.nc", engine="h5netcdf")
    return folder / "X.nc", None


@case("NetCDF with dates as features", needs=_XARRAY, features="time")
def _dates(folder: Path) -> tuple[Path, Own]:
    import pandas as pd
    import xarray as xr

    days = pd.date_range("2020-01-01", periods=4)
    values = np.random.default_rng(0).normal(size=(5, 3, 4))
    data = xr.Dataset({"X": (("y", "x", "time"), values)}, {"time": days})
    data.to_netcdf(folder / "X.nc", engine="h5netcdf")
    return folder / "X.nc", _own_xarray(xr.open_dataset(folder / "X.nc"), feature="time")


@case(
    "NetCDF with groups (PACE)", needs=_XARRAY, features="band", variable="observation_data/X",
)  # fmt: skip
def _groups(folder: Path) -> tuple[Path, Own]:
    import xarray as xr

    xr.Dataset({"quality": ("y", np.arange(5))}).to_netcdf(folder / "X.nc", engine="h5netcdf")
    scene = _packed((5, 3, 4))
    scene.to_netcdf(folder / "X.nc", mode="a", group="observation_data", engine="h5netcdf")
    read = xr.open_dataset(folder / "X.nc", group="observation_data", engine="h5netcdf")
    return folder / "X.nc", _own_xarray(read)


# Other zarr


@case("zarr, nested groups", variable="image/level0/X")
def _nested(folder: Path) -> tuple[Path, Own]:
    import zarr

    values = np.random.default_rng(0).normal(size=(9, 4))
    root = zarr.open_group(str(folder / "X.zarr"), mode="w")
    root.create_group("image/level0").create_array("X", data=values)
    return folder / "X.zarr", Own(zarr.open_group(folder / "X.zarr")["image/level0/X"][...])


@case("zarr in a zip")
def _zipped(folder: Path) -> tuple[Path, Own]:
    import zarr

    values = np.random.default_rng(0).normal(size=(9, 4))
    with zarr.storage.ZipStore(folder / "X.zarr.zip", mode="w") as store:
        zarr.create_array(store=store, data=values, chunks=(4, 4))
    with zarr.storage.ZipStore(folder / "X.zarr.zip", mode="r") as store:
        return folder / "X.zarr.zip", Own(zarr.open_array(store=store, mode="r")[...])


# Other HDF5


def _h5(fill: Any, name: str = "X.h5") -> Any:
    def make(folder: Path) -> tuple[Path, Any]:
        import h5py

        with h5py.File(folder / name, "w") as file:
            own = fill(file)
        return folder / name, own

    return make


@case("h5 of one array", needs=("h5py",))
def _one(folder: Path) -> Any:
    values = np.random.default_rng(0).normal(size=(9, 4))
    return _h5(lambda file: Own(file.create_dataset("scans/X", data=values)[...]))(folder)


for _codec in ("Blosc", "Zstd", "LZ4"):

    @case(f"h5 packed by {_codec}", needs=("h5py", "hdf5plugin"))
    def _plugin(folder: Path, codec: str = _codec) -> Any:
        import h5py
        import hdf5plugin

        values = np.random.default_rng(0).normal(size=(90, 4))
        with h5py.File(folder / "X.h5", "w") as file:
            filters = getattr(hdf5plugin, codec)()
            file.create_dataset("X", data=values, chunks=(30, 4), **filters)
        return folder / "X.h5", Own(values)


def _pandas_frame(file: Any) -> None:
    """Fill a file as pandas' to_hdf does, which needs PyTables."""
    group = file.create_group("df")
    group.attrs["CLASS"], group.attrs["pandas_type"] = np.bytes_("GROUP"), np.bytes_("frame")
    group["block0_values"] = np.arange(12.0).reshape(4, 3)
    group["block0_items"] = group["axis0"] = np.array([b"a", b"b", b"c"])
    group["axis1"] = np.arange(4)


for _name in ("X.h5", "X.hdf5"):
    case(f"HDFStore of pandas as {_name}", needs=("h5py",), refused="pandas")(
        _h5(_pandas_frame, _name)
    )


@case("molecule_info.h5", needs=("h5py",), refused="olecule")
def _molecules(folder: Path) -> Any:
    def fill(file: Any) -> None:
        for name in ("barcode_idx", "count", "feature_idx", "gem_group", "umi"):
            file[name] = np.arange(30)
        file["barcodes"] = np.array([b"AAC", b"AAG"])
        file["barcode_info/pass_filter"] = np.arange(12).reshape(4, 3)
        file["features/name"] = file["features/id"] = np.array([b"a", b"b"])
        file.attrs["file_version"] = 4

    return _h5(fill, "molecule_info.h5")(folder)


@case("h5seurat", needs=("h5py",), refused="onvert")
def _seurat(folder: Path) -> Any:
    return _h5(lambda file: file.create_group("assays/RNA") and None, "X.h5seurat")(folder)


# AnnData


def _annotated(sparse: bool = True) -> Any:
    import anndata as ad
    import pandas as pd
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    counts = rng.poisson(1, (12, 4)).astype(np.float32)
    kinds = pd.Categorical(np.array(["t", "b", "nk"])[np.arange(12) % 3])
    obs = pd.DataFrame(
        {"kind": kinds, "score": rng.normal(size=12), "good": pd.array([True, False] * 6)},
        index=[f"AAC{i}-1" for i in range(12)],
    )
    adata = ad.AnnData(sp.csr_matrix(counts) if sparse else counts, obs)
    adata.var_names = [f"gene{j}" for j in range(4)]
    adata.obsm["X_pca"] = rng.normal(size=(12, 2))
    return adata


def _own_anndata(adata: Any, labels: bool = True) -> Own:
    X = adata.X.toarray() if hasattr(adata.X, "toarray") else np.asarray(adata.X)
    found = {"{}::kind": adata.obs["kind"], "{}::score": adata.obs["score"]} if labels else {}
    return Own(X, list(adata.var_names), list(adata.obs_names), found)


for _sparse in (True, False):
    _form = "CSR" if _sparse else "dense"

    @case(f"h5ad {_form}", needs=_ANNDATA)
    def _h5ad(folder: Path, sparse: bool = _sparse) -> tuple[Path, Own]:
        import anndata as ad

        _annotated(sparse).write_h5ad(folder / "X.h5ad")
        return folder / "X.h5ad", _own_anndata(ad.read_h5ad(folder / "X.h5ad"))

    @case(f"AnnData {_form} in zarr", needs=_ANNDATA)
    def _annotated_zarr(folder: Path, sparse: bool = _sparse) -> tuple[Path, Own]:
        import anndata as ad

        _annotated(sparse).write_zarr(folder / "X.zarr")
        return folder / "X.zarr", _own_anndata(ad.read_zarr(folder / "X.zarr"))

    @case(f"AnnData {_form} named .h5", needs=_ANNDATA)
    def _named_h5(folder: Path, sparse: bool = _sparse) -> tuple[Path, Own]:
        import anndata as ad

        _annotated(sparse).write_h5ad(folder / "X.h5")
        return folder / "X.h5", _own_anndata(ad.read_h5ad(folder / "X.h5"))


def _old_layout(root: Any, adata: Any) -> None:
    """Fill a group as anndata 0.7 does: the categories of all columns in one group."""

    def encode(node: Any, kind: str, version: str) -> None:
        node.attrs["encoding-type"], node.attrs["encoding-version"] = kind, version

    X = root.create_group("X")
    encode(X, "csr_matrix", "0.1.0")
    X.attrs["shape"] = np.array(adata.shape).tolist()
    for part in ("data", "indices", "indptr"):
        X[part] = getattr(adata.X, part)
    for name in ("obs", "var"):
        frame, group = getattr(adata, name), root.create_group(name)
        encode(group, "dataframe", "0.1.0")
        group.attrs["_index"] = "index"
        group.attrs["column-order"] = list(frame.columns)
        _texts(group, "index", frame.index)
        for column in frame.columns:
            if frame[column].dtype.name == "category":
                _texts(group, f"__categories/{column}", frame[column].cat.categories)
                group[column] = np.asarray(frame[column].cat.codes)
            else:
                group[column] = np.asarray(frame[column])
    _point_to_categories(root)


def _texts(group: Any, name: str, values: Any) -> None:
    if type(group).__module__.startswith("h5py"):
        import h5py

        group.create_dataset(name, data=list(values), dtype=h5py.string_dtype())
    else:
        group[name] = np.array([str(value) for value in values], dtype="U20")


def _point_to_categories(root: Any) -> None:
    codes, categories = root["obs/kind"], root["obs/__categories/kind"]
    categories.attrs["ordered"] = False
    is_h5 = type(root).__module__.startswith("h5py")
    codes.attrs["categories"] = categories.ref if is_h5 else "__categories/kind"


@case("h5ad of anndata 0.7", needs=_ANNDATA)
def _old_h5ad(folder: Path) -> tuple[Path, Own]:
    import anndata as ad
    import h5py

    with h5py.File(folder / "X.h5ad", "w") as file:
        _old_layout(file, _annotated())
    return folder / "X.h5ad", _own_anndata(ad.read_h5ad(folder / "X.h5ad"))


@case("h5ad of anndata 0.7, chosen rows", needs=_ANNDATA,
      rows={"column": "kind", "keep": ["t", "nk"]})  # fmt: skip
def _old_rows(folder: Path) -> tuple[Path, Own]:
    path, own = _old_h5ad(folder)
    chosen = np.isin(np.asarray(own.labels["{}::kind"]), ["t", "nk"])
    return path, Own(own.values[chosen], own.names)


@case("AnnData 0.7 in zarr", needs=_ANNDATA)
def _old_zarr(folder: Path) -> tuple[Path, Own]:
    import anndata as ad
    import zarr

    _old_layout(zarr.open_group(str(folder / "X.zarr"), mode="w", zarr_format=2), _annotated())
    return folder / "X.zarr", _own_anndata(ad.read_zarr(folder / "X.zarr"))


# 10x


def _tenx(folder: Path, name: str = "X.h5", kinds: Any = None, dtype: Any = np.int32) -> Path:
    """Write counts as Cell Ranger 3 does."""
    import h5py

    adata = _annotated()
    with h5py.File(folder / name, "w") as file:
        group = file.create_group("matrix")
        for part in ("data", "indices", "indptr"):
            values = getattr(adata.X, part)
            group[part] = values.astype(dtype) if part == "data" else values.astype(np.int64)
        group["shape"] = np.array(adata.shape[::-1], np.int32)
        group["barcodes"] = np.array(adata.obs_names, dtype="S")
        group["features/name"] = np.array(adata.var_names, dtype="S")
        group["features/id"] = np.array([f"ENSG{j}" for j in range(4)], dtype="S")
        group["features/feature_type"] = np.array(kinds or ["Gene Expression"] * 4, dtype="S")
        group["features/genome"] = np.array(["GRCh38"] * 4, dtype="S")
    return folder / name


def _own_tenx(adata: Any) -> Own:
    return Own(adata.X.toarray(), list(adata.var_names), list(adata.obs_names))


@case("10x version 3", needs=("scanpy",))
def _tenx_3(folder: Path) -> tuple[Path, Own]:
    import scanpy as sc

    path = _tenx(folder)
    return path, _own_tenx(sc.read_10x_h5(path))


_KINDS = ["Gene Expression", "Antibody Capture", "Gene Expression", "CRISPR Guide Capture"]


@case("10x with antibodies", needs=("scanpy",))
def _antibodies(folder: Path) -> tuple[Path, Own]:
    import scanpy as sc

    path = _tenx(folder, kinds=_KINDS)
    return path, _own_tenx(sc.read_10x_h5(path))


@case("10x, chosen types", needs=("scanpy",),
      feature_types=["Gene Expression", "Antibody Capture"])  # fmt: skip
def _chosen_types(folder: Path) -> tuple[Path, Own]:
    import scanpy as sc

    path = _tenx(folder, kinds=_KINDS)
    adata = sc.read_10x_h5(path, gex_only=False)[:, :3]
    return path, _own_tenx(adata)


@case("10x version 2", needs=("scanpy",))
def _tenx_2(folder: Path) -> tuple[Path, Own]:
    import h5py
    import scanpy as sc

    adata = _annotated()
    with h5py.File(folder / "X.h5", "w") as file:
        group = file.create_group("GRCh38")
        for part in ("data", "indices", "indptr"):
            group[part] = getattr(adata.X, part).astype(np.int32)
        group["shape"] = np.array(adata.shape[::-1], np.int32)
        group["barcodes"] = np.array(adata.obs_names, dtype="S")
        group["gene_names"] = np.array(adata.var_names, dtype="S")
        group["genes"] = np.array([f"ENSG{j}" for j in range(4)], dtype="S")
    return folder / "X.h5", _own_tenx(sc.read_10x_h5(folder / "X.h5"))


def _trio(
    folder: Path, prefix: str = "", *, packed: bool, kinds: Any = None, version: int = 3
) -> None:
    from scipy.io import mmwrite

    adata = _annotated()
    ending = ".gz" if packed else ""
    write: Any = gzip.open if packed else open
    kinds = kinds or ["Gene Expression"] * 4
    with write(folder / f"{prefix}matrix.mtx{ending}", "wb") as file:
        mmwrite(file, adata.X.T.astype(np.int64).tocoo())
    lines = [
        f"ENSG{j}\t{name}" + (f"\t{kinds[j]}" if version == 3 else "") + "\n"
        for j, name in enumerate(adata.var_names)
    ]
    about = "features" if version == 3 else "genes"
    with write(folder / f"{prefix}{about}.tsv{ending}", "wb") as file:
        file.write("".join(lines).encode())
    with write(folder / f"{prefix}barcodes.tsv{ending}", "wb") as file:
        file.write("".join(f"{name}\n" for name in adata.obs_names).encode())


@case("10x folder", needs=("scanpy",))
def _folder(folder: Path) -> tuple[Path, Own]:
    import scanpy as sc

    _trio(folder, packed=True)
    return folder, _own_tenx(sc.read_10x_mtx(folder))


@case("10x folder of version 2", needs=("scanpy",))
def _folder_2(folder: Path) -> tuple[Path, Own]:
    import scanpy as sc

    _trio(folder, packed=False, version=2)
    return folder, _own_tenx(sc.read_10x_mtx(folder))


@case("10x folder with antibodies", needs=("scanpy",))
def _folder_of_kinds(folder: Path) -> tuple[Path, Own]:
    import scanpy as sc

    _trio(folder, packed=True, kinds=_KINDS)
    return folder, _own_tenx(sc.read_10x_mtx(folder))


@case("10x trio with a prefix", needs=("scanpy",))
def _prefixed(folder: Path) -> tuple[Path, Own]:
    import scanpy as sc

    _trio(folder, "GSM1_", packed=True)
    return folder, _own_tenx(sc.read_10x_mtx(folder, prefix="GSM1_"))


@case("10x trio with a prefix, by its matrix", needs=("scanpy",))
def _prefixed_file(folder: Path) -> tuple[Path, Own]:
    path, own = _prefixed(folder)
    return path / "GSM1_matrix.mtx.gz", own


# loom and MuData


@case("loom", needs=("loompy",))
def _loom(folder: Path) -> tuple[Path, Own]:
    import loompy

    adata = _annotated()
    genes = {"Gene": np.array(adata.var_names, dtype=object)}
    cells = {
        "CellID": np.array(adata.obs_names, dtype=object),
        "kind": np.array(adata.obs["kind"], dtype=object),
    }
    path = folder / "X.loom"
    loompy.create(str(path), adata.X.toarray().T, genes, cells)
    with loompy.connect(str(path), mode="r", validate=False) as file:
        return path, Own(
            file[:, :].T, list(file.ra["Gene"]), list(file.ca["CellID"]),
            {"{}::kind": file.ca["kind"]},
        )  # fmt: skip


def _mudata(folder: Path) -> Path:
    import mudata

    rna, protein = _annotated(), _annotated(sparse=False)[:, :2].copy()
    protein.var_names = ["CD3", "CD4"]
    mudata.MuData({"rna": rna, "prot": protein}).write_h5mu(folder / "X.h5mu")
    return folder / "X.h5mu"


for _part in ("rna", "prot"):

    @case(f"h5mu, {_part}", needs=("mudata",), variable=_part)
    def _h5mu(folder: Path, part: str = _part) -> tuple[Path, Own]:
        import mudata

        path = _mudata(folder)
        return path, _own_anndata(mudata.read_h5mu(path)[part], labels=False)


@case("h5mu, unnamed", needs=("mudata",), refused="rna")
def _h5mu_unnamed(folder: Path) -> tuple[Path, None]:
    return _mudata(folder), None
