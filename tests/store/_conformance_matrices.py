"""Matrices for `_conformance`: NumPy, MATLAB, Matrix Market, svmlight, GeoTIFF and ENVI."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np

from tests.store._conformance import Own, case

_GEO = ("rasterio",)


def _dense(shape: tuple[int, ...] = (23, 5), dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(0, 40, shape)
    return values.astype(dtype) if np.dtype(dtype).kind != "b" else values > 0


def _sparse(shape: tuple[int, int] = (23, 5), dtype: Any = np.float64) -> Any:
    import scipy.sparse as sp

    values = _dense(shape, np.float64)
    values[np.abs(values) < 30] = 0
    return sp.csc_matrix(values.astype(dtype))


# NumPy


def _numpy(values: np.ndarray, shape: tuple[int, int] | None = None) -> Any:
    def make(folder: Path) -> tuple[Path, Own]:
        np.save(folder / "X.npy", values)
        return folder / "X.npy", Own(np.load(folder / "X.npy").reshape(shape or values.shape))

    return make


for _type in ("f2", "f4", "f8", ">f4", ">i2", "u1", "i8", "?"):
    case(f"npy {_type}")(_numpy(_dense(dtype=_type)))
case("npy by columns")(_numpy(np.asfortranarray(_dense())))
case(
    "npy cube", features=[1, 2]
)(_numpy(_dense((11, 3, 4)), (11, 12)))  # fmt: skip
case(
    "npy cube, features first", features=0
)(lambda folder: _turned(folder))  # fmt: skip


def _turned(folder: Path) -> tuple[Path, Own]:
    cube = _dense((3, 6, 4))
    np.save(folder / "X.npy", cube)
    return folder / "X.npy", Own(np.load(folder / "X.npy").reshape(3, -1).T)


@case("npy of pickled objects", refused="pickled")
def _objects(folder: Path) -> tuple[Path, None]:
    np.save(folder / "X.npy", np.array([[1, "a"], [None, 2]], dtype=object))
    return folder / "X.npy", None


@case("npz of pandas (Fortran order)")
def _npz_fortran(folder: Path) -> tuple[Path, Own]:
    import pandas as pd

    X = pd.DataFrame({f"g{j}": column for j, column in enumerate(_dense().T)}).to_numpy()
    assert X.flags.f_contiguous
    np.savez_compressed(folder / "X.npz", X=X, y=np.arange(23))
    with np.load(folder / "X.npz") as file:
        return folder / "X.npz", Own(file["X"], labels={"{}": file["y"]})


def _mnist(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (20, 4, 3), np.uint8)
    np.savez_compressed(
        folder / "mnist.npz",
        x_train=images, y_train=np.arange(20), x_test=images[:9], y_test=np.arange(9),
    )  # fmt: skip
    return folder / "mnist.npz"


@case(
    "npz of Keras (mnist.npz)", variable="x_train", features=[1, 2]
)  # fmt: skip
def _keras(folder: Path) -> tuple[Path, Own]:
    path = _mnist(folder)
    with np.load(path) as file:
        values, y = file["x_train"].reshape(20, 12), file["y_train"]
    return path, Own(values, labels={"{}::y_train": y})


@case("npz of Keras, unnamed", refused="x_train")
def _keras_unnamed(folder: Path) -> tuple[Path, None]:
    return _mnist(folder), None


for _form in ("csr", "csc", "coo", "bsr", "dia"):

    @case(f"npz of scipy, {_form}")
    def _npz_sparse(folder: Path, form: str = _form) -> tuple[Path, Own]:
        import scipy.sparse as sp

        sp.save_npz(folder / "X.npz", _sparse().asformat(form))
        return folder / "X.npz", Own(sp.load_npz(folder / "X.npz").toarray())


# MATLAB 5 and before


def _savemat(folder: Path, content: dict[str, Any], **options: Any) -> tuple[Path, dict[str, Any]]:
    from scipy.io import loadmat, savemat

    savemat(folder / "X.mat", content, **options)
    return folder / "X.mat", loadmat(folder / "X.mat", spmatrix=False)


def _mat(values: Any, **options: Any) -> Any:
    def make(folder: Path) -> tuple[Path, Own]:
        path, read = _savemat(folder, {"X": values}, **options)
        X = read["X"]
        return path, Own(X.toarray() if hasattr(X, "toarray") else X)

    return make


for _type in ("f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?"):
    case(f"mat {_type}")(_mat(np.abs(_dense()).astype(_type)))
case("mat packed")(_mat(_dense(), do_compression=True))
case("mat version 4")(_mat(_dense(), format="4"))
case("mat sparse")(_mat(_sparse()))
case("mat sparse, packed")(_mat(_sparse(), do_compression=True))
case("mat logical sparse")(_mat(_sparse() != 0))
case("mat sparse, version 4")(_mat(_sparse(), format="4"))
case("mat complex", refused="complex")(
    lambda folder: (_savemat(folder, {"X": _dense() * 1j})[0], None)
)


def _scene(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Write a scene and its classes as the Indian Pines and Pavia are."""
    rng = np.random.default_rng(0)
    cube = rng.integers(900, 9000, (9, 7, 5), np.uint16)
    classes = rng.integers(0, 17, (9, 7), np.uint8)
    return _savemat(folder, {"paviaU": cube, "paviaU_gt": classes}, do_compression=True)


@case("mat cube (PaviaU)", features=2, variable="paviaU")
def _pavia(folder: Path) -> tuple[Path, Own]:
    path, read = _scene(folder)
    return path, Own(read["paviaU"].reshape(63, 5), labels={"{}::paviaU_gt": read["paviaU_gt"]})


@case("mat cube alone (Indian Pines)", features=2)
def _pines(folder: Path) -> tuple[Path, Own]:
    cube = np.random.default_rng(0).integers(0, 9000, (9, 7, 5), np.uint16)
    path, read = _savemat(folder, {"indian_pines_corrected": cube})
    return path, Own(read["indian_pines_corrected"].reshape(63, 5))


@case("mat cube, features unnamed", refused="input.features")
def _unnamed_axis(folder: Path) -> tuple[Path, None]:
    return _savemat(folder, {"cube": np.zeros((9, 7, 5))})[0], None


@case("mat with texts, cells and structs beside")
def _beside(folder: Path) -> tuple[Path, Own]:
    names = np.array(["first", "second"], dtype=object)
    content = {
        "note": "as measured", "names": names, "about": {"year": 2020, "by": "me"},
        "fea": _dense(), "gnd": np.arange(23)[:, None], "letters": np.array(["ab", "cd"]),
    }  # fmt: skip
    path, read = _savemat(folder, content)
    return path, Own(read["fea"], labels={"{}::gnd": read["gnd"]})


# MATLAB 7.3, in the layout that MATLAB writes in HDF5


def _matlab_73(folder: Path, fill: Any) -> Path:
    import h5py

    with h5py.File(folder / "X.mat", "w", userblock_size=512) as file:
        fill(file)
    with (folder / "X.mat").open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM")
    return folder / "X.mat"


def _put(file: Any, name: str, values: np.ndarray, kind: str) -> None:
    file[name] = values.T
    file[name].attrs["MATLAB_class"] = np.bytes_(kind)


@case("mat 7.3", needs=("h5py",))
def _mat_73(folder: Path) -> tuple[Path, Own]:
    X = _dense()
    return _matlab_73(folder, lambda file: _put(file, "X", X, "double")), Own(X)


@case("mat 7.3, cube", needs=("h5py",), features=2)
def _mat_73_cube(folder: Path) -> tuple[Path, Own]:
    X = _dense((6, 4, 3), "f4")
    return _matlab_73(folder, lambda file: _put(file, "X", X, "single")), Own(X.reshape(24, 3))


@case("mat 7.3, texts beside", needs=("h5py",))
def _mat_73_texts(folder: Path) -> tuple[Path, Own]:
    X, y = _dense(), np.arange(23.0)[:, None]

    def fill(file: Any) -> None:
        _put(file, "fea", X, "double")
        _put(file, "gnd", y, "double")
        letters = np.array([[ord(c) for c in word] for word in ("red ", "blue")], np.uint16)
        _put(file, "letters", letters, "char")

    return _matlab_73(folder, fill), Own(X, labels={"{}::gnd": y})


@case("mat 7.3, only texts beside", needs=("h5py",))
def _mat_73_only(folder: Path) -> tuple[Path, Own]:
    X = _dense()

    def fill(file: Any) -> None:
        _put(file, "spectra", X, "double")
        letters = np.array([[ord(c) for c in word] for word in ("red ", "blue")], np.uint16)
        _put(file, "letters", letters, "char")

    return _matlab_73(folder, fill), Own(X)


def _put_sparse(file: Any, name: str, S: Any, kind: str) -> None:
    group = file.create_group(name)
    group.attrs["MATLAB_class"] = np.bytes_(kind)
    group.attrs["MATLAB_sparse"] = np.uint64(S.shape[0])
    group["data"] = S.data.astype("u1" if kind == "logical" else "f8")
    group["ir"], group["jc"] = S.indices.astype("u8"), S.indptr.astype("u8")


for _kind in ("double", "logical"):

    @case(f"mat 7.3, sparse {_kind}", needs=("h5py",))
    def _mat_73_sparse(folder: Path, kind: str = _kind) -> tuple[Path, Own]:
        S = _sparse() != 0 if kind == "logical" else _sparse()
        return _matlab_73(folder, lambda file: _put_sparse(file, "X", S, kind)), Own(S.toarray())


# Matrix Market


def _bare(name: str, values: Any, **options: Any) -> Any:
    def make(folder: Path) -> tuple[Path, Own]:
        from scipy.io import mmread, mmwrite

        with (gzip.open if name.endswith(".gz") else open)(folder / name, "wb") as file:
            mmwrite(file, values, **options)
        read = mmread(folder / name)
        return folder / name, Own(read.toarray() if hasattr(read, "toarray") else read)

    return make


case("mtx")(_bare("X.mtx", _sparse()))
case("mtx of whole numbers")(_bare("X.mtx", _sparse(dtype=np.int64)))
case("mtx, unsigned")(
    _bare("X.mtx", abs(_sparse(dtype=np.int64)).astype(np.uint64))
)  # fmt: skip
case("mtx, gzipped")(_bare("X.mtx.gz", _sparse()))
case("mtx of a pattern")(_bare("X.mtx", _sparse(), field="pattern"))
case("mtx, symmetric")(_bare("X.mtx", (_sparse((9, 9)) + _sparse((9, 9)).T).tocoo()))
case("mtx, skew-symmetric")(_bare("X.mtx", (_sparse((9, 9)) - _sparse((9, 9)).T).tocoo()))
case("mtx, dense array")(_bare("X.mtx", _dense()))
case("mtx, dense whole numbers")(_bare("X.mtx", _dense(dtype=np.int64)))
case("mtx with comments")(_bare("X.mtx", _sparse(), comment="by hand\nor so"))


@case("mtx by hand: blanks, empty lines, exponents")
def _by_hand(folder: Path) -> tuple[Path, Own]:
    from scipy.io import mmread

    lines = ["1 1 1.5", "  2  1\t-2e-3 ", "", "3 3 1E+2", " ", "4 2 7", "4 3 0.1"]
    header = "%%MatrixMarket matrix coordinate real general\n% by hand\n4 3 5\n"
    (folder / "X.mtx").write_text(header + "\n".join(lines) + "\r\n")
    return folder / "X.mtx", Own(mmread(folder / "X.mtx").toarray())


@case("mtx, complex", refused="complex")
def _complex(folder: Path) -> tuple[Path, None]:
    return _bare("X.mtx", _sparse() * 1j)(folder)[0], None


# svmlight


def _svm(name: str = "X.svm", **options: Any) -> Any:
    def make(folder: Path) -> tuple[Path, Own]:
        from sklearn.datasets import dump_svmlight_file, load_svmlight_file

        y = np.arange(23) % 3
        opened = gzip.open if name.endswith(".gz") else open
        with opened(folder / name, "wb") as file:
            dump_svmlight_file(_sparse(), y, file, **options)
        X, read = load_svmlight_file(str(folder / name))
        return folder / name, Own(X.toarray(), labels={"{}": read})

    return make


case("svmlight")(_svm(zero_based=False))
case("svmlight from 0")(_svm(zero_based=True))
case("svmlight with comments")(_svm(comment="by hand"))
case("svmlight, gzipped")(_svm("X.svmlight.gz"))
case("svmlight as .libsvm")(_svm("X.libsvm"))
case("svmlight with queries")(_svm(query_id=np.arange(23) // 5))


# GeoTIFF and ENVI


def _picture(folder: Path, name: str, cube: np.ndarray, **options: Any) -> Path:
    """Write bands x lines x pixels, with a map."""
    import rasterio
    from rasterio.transform import from_origin

    count, height, width = cube.shape
    names = options.pop("names", ())
    about = {"crs": "EPSG:32633", "transform": from_origin(5e5, 5e6, 30, 30), **options}
    with rasterio.open(
        folder / name, "w", count=count, height=height, width=width, dtype=cube.dtype, **about
    ) as file:
        file.write(cube)
        for band, text in enumerate(names, 1):
            file.set_band_description(band, text)
    return folder / name


def _own_picture(path: Path, names: Any = "descriptions") -> Own:
    import rasterio

    with rasterio.open(path) as file:
        bands = file.read(masked=True).astype(np.float64).filled(np.nan)
        if names == "descriptions":
            names = list(file.descriptions) if all(file.descriptions) else None
        elif names == "wavelengths":
            names = [file.tags(i)["wavelength"] for i in file.indexes]
    return Own(bands.reshape(len(bands), -1).T, names)


@case("GeoTIFF", needs=_GEO)
def _geotiff(folder: Path) -> tuple[Path, Own]:
    path = _picture(folder, "X.tif", _dense((4, 6, 5), "f4"), driver="GTiff")
    return path, _own_picture(path)


@case("GeoTIFF in tiles, with no-data and names", needs=_GEO)
def _tiled(folder: Path) -> tuple[Path, Own]:
    cube = _dense((3, 40, 50), "i2")
    cube[1, 4:9] = -9999
    path = _picture(
        folder, "X.tiff", cube, driver="GTiff", nodata=-9999, names=("red", "green", "infrared"),
        tiled=True, blockxsize=16, blockysize=16, compress="deflate", interleave="band",
    )  # fmt: skip
    return path, _own_picture(path)


@case("GeoTIFF with NaN as no-data", needs=_GEO)
def _nan_tiff(folder: Path) -> tuple[Path, Own]:
    cube = _dense((2, 6, 5), "f4")
    cube[0, 2] = np.nan
    path = _picture(folder, "X.tif", cube, driver="GTiff", nodata=np.nan)
    return path, _own_picture(path)


@case("GeoTIFF, another no-data", needs=_GEO, no_data=0)
def _given_no_data(folder: Path) -> tuple[Path, Own]:
    cube = np.abs(_dense((2, 6, 5), "i2")) % 4
    path = _picture(folder, "X.tif", cube, driver="GTiff")
    own = _own_picture(path)
    return path, Own(np.where(own.values == 0, np.nan, own.values), own.names)


for _lines in ("BSQ", "BIL", "BIP"):

    @case(f"ENVI {_lines} with wavelengths", needs=_GEO)
    def _envi(folder: Path, order: str = _lines) -> tuple[Path, Own]:
        path = _picture(
            folder, "scene.img", _dense((3, 6, 5), "u2"), driver="ENVI", interleave=order
        )
        with (folder / "scene.hdr").open("a") as header:
            header.write("wavelength = {400.1, 410.5, 420.25}\ndata ignore value = 7\n")
        return path, _own_picture(path, "wavelengths")


@case("ENVI by its header", needs=_GEO)
def _envi_header(folder: Path) -> tuple[Path, Own]:
    path = _picture(folder, "scene.dat", _dense((3, 6, 5), "f4"), driver="ENVI")
    return folder / "scene.hdr", _own_picture(path)


# Tables and matrices that lie on their side


def _on_its_side(kind: str) -> Any:
    def make(folder: Path) -> tuple[Path, Own]:
        import pandas as pd

        frame = pd.DataFrame(_dense((4, 11)), [f"g{i}" for i in range(4)], columns=None)
        frame.columns = [f"c{i}" for i in range(11)]
        path = folder / f"X.{kind}"
        if kind in ("csv", "tsv"):
            separator = "," if kind == "csv" else "\t"
            frame.to_csv(path, sep=separator, index_label="gene")
            read = pd.read_csv(path, sep=separator, index_col=0, float_precision="round_trip").T
        else:
            frame.reset_index(names="gene").to_parquet(path)
            read = pd.read_parquet(path).set_index("gene").T
        return path, Own(read.to_numpy(), list(read.columns), list(read.index))

    return make


for _kind in ("csv", "tsv", "parquet"):
    case(f"{_kind} on its side", needs=("pyarrow",), transpose=True, index="gene")(
        _on_its_side(_kind)
    )


def _turn(make: Any) -> Any:
    def turned(folder: Path) -> tuple[Path, Own]:
        path, own = make(folder)
        return path, Own(np.asarray(own.values).T)

    return turned


case("npy on its side", transpose=True)(_turn(_numpy(_dense())))
case("npz on its side", transpose=True)(_turn(_npz_fortran))
case("mat on its side", transpose=True)(_turn(_mat(_dense())))
case("mat sparse on its side", transpose=True)(_turn(_mat(_sparse())))
case("mtx on its side", transpose=True)(_turn(_bare("X.mtx", _sparse())))
