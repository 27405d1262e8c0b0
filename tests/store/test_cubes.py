"""Arrays of several dimensions: one is that of the features, the others are rows and come back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import bigfs
from bigfs.core.errors import ConfigError, InputError
from bigfs.core.paths import LabelValues
from bigfs.pipeline.inspect import describe
from bigfs.plan.planning import plan_pipeline
from bigfs.selectors.registry import load_config
from bigfs.store.formats import cube
from bigfs.store.formats.cube import CubeSource
from bigfs.store.ingest import ingest
from bigfs.store.labels import labels_in, load_labels
from bigfs.store.scratch import Scratch
from bigfs.store.source import open_matrix

Y, X, BANDS = 7, 9, 5
WAVELENGTHS = [450.5, 500.0, 550.0, 600.0, 650.0]
NAMES = ["450.5", "500.0", "550.0", "600.0", "650.0"]


def scene() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(Y, X, BANDS)).astype(np.float32)


def data_array(order: tuple[str, ...] = ("y", "x", "band")) -> Any:
    xarray = pytest.importorskip("xarray", reason="the extra bigfs[xarray] is not installed")
    coordinates = {"band": WAVELENGTHS}
    actual = xarray.DataArray(scene(), dims=("y", "x", "band"), coords=coordinates, name="radiance")
    return actual.transpose(*order)


def netcdf(chunks: tuple[int, ...], order: tuple[str, ...]) -> Callable[[Path], Any]:
    def make(folder: Path) -> Any:
        pytest.importorskip("h5netcdf", reason="the extra bigfs[xarray] is not installed")
        encoding = {"radiance": {"chunksizes": chunks}}
        data_array(order).to_netcdf(folder / "a.nc", engine="h5netcdf", encoding=encoding)
        return folder / "a.nc"

    return make


def hdf5(folder: Path) -> Any:
    h5py = pytest.importorskip("h5py", reason="the extra bigfs[anndata] is not installed")
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("scans/r", data=scene(), chunks=(3, 4, 2), compression="gzip")
        file["scans/other"] = np.arange(4)
    return f"{folder / 'a.h5'}::/scans/r"


def matlab(folder: Path) -> Any:
    """Write a file as MATLAB's save(..., '-v7.3') does: dimensions in reverse order."""
    h5py = pytest.importorskip("h5py", reason="the extra bigfs[anndata] is not installed")
    with h5py.File(folder / "a.mat", "w", userblock_size=512) as file:
        file["cube"] = scene().T
        file["cube"].attrs["MATLAB_class"] = np.bytes_("single")
        file.create_group("#refs#")
    with open(folder / "a.mat", "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(128))
    return folder / "a.mat"


def zarr_array(folder: Path) -> Any:
    values = np.moveaxis(scene(), -1, 0)
    zarr.create_array(
        store=str(folder / "z.zarr"), data=values, chunks=(2, 7, 9),
        dimension_names=("band", "y", "x"),
    )  # fmt: skip
    return folder / "z.zarr"


# name -> (maker, the dimension of the features, whether they have names)
CUBES: dict[str, tuple[Callable[[Path], Any], str | int, bool]] = {
    "zarr by bands": (zarr_array, "band", False),
    "HDF5": (hdf5, -1, False),
    "MATLAB 7.3": (matlab, 2, False),
    "NetCDF by pixels": (netcdf((3, 4, 5), ("y", "x", "band")), "band", True),
    "NetCDF by bands": (netcdf((1, 7, 9), ("band", "y", "x")), "band", True),
    "DataArray": (lambda _: data_array(), "band", True),
    "DataArray of Dask": (
        lambda _: data_array(("band", "y", "x")).chunk({"band": 2}),
        "band",
        True,
    ),
    "Dataset": (lambda _: data_array().to_dataset(), "band", True),
}


@pytest.mark.parametrize("piece_bytes", [32 * 10**6, pytest.param(360, marks=pytest.mark.full), 60])
@pytest.mark.parametrize("name", CUBES)
def test_all_but_one_dimension_are_rows(
    name: str, piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the chunks are, and however little is read at once."""
    monkeypatch.setattr(cube, "_PIECE_BYTES", piece_bytes)
    make, features, named = CUBES[name]
    source = open_matrix(make(tmp_path), features=features)
    assert source.n_samples == Y * X
    assert source.feature_names == (NAMES if named else None)
    assert source.grid is not None and source.grid["shape"] == [Y, X]
    for rows in (4, 1000):
        blocks = list(source.iter_blocks(rows))
        assert max(map(len, blocks)) <= rows
        np.testing.assert_array_equal(np.concatenate(blocks), scene().reshape(-1, BANDS))


def test_any_dimension_may_hold_the_features(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 4, 2, 5))
    zarr.create_array(store=str(tmp_path / "z.zarr"), data=values, chunks=(1, 4, 1, 5))
    for axis in range(4):
        source = open_matrix(tmp_path / "z.zarr", features=axis)
        rows = np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])
        np.testing.assert_array_equal(np.concatenate(list(source.iter_blocks(7))), rows)
    flat = np.ascontiguousarray(values.reshape(12, 10))
    zarr.create_array(store=str(tmp_path / "flat.zarr"), data=flat, chunks=(5, 5))
    source = open_matrix(tmp_path / "flat.zarr", features=0)
    np.testing.assert_array_equal(np.concatenate(list(source.iter_blocks(7))), flat.T)


class _Counted:
    """An array that counts how often each value is read."""

    def __init__(self, values: np.ndarray, chunks: tuple[int, ...]) -> None:
        self.values, self.chunks, self.count = values, chunks, np.zeros(values.shape, int)
        self.shape, self.dtype = values.shape, values.dtype

    def __getitem__(self, key: tuple[slice, ...]) -> np.ndarray:
        complete = tuple(
            slice(part.start // step * step, -(-part.stop // step) * step)
            for part, step in zip(key, self.chunks, strict=True)
        )
        self.count[complete] += 1
        return self.values[key]


@pytest.mark.parametrize(
    "chunks",
    [(1, 40, 30), (8, 10, 30), (8, 1, 30), (2, 7, 11), (8, 40, 30), (8, 10, 7), (3, 20, 16)],
)
def test_every_chunk_is_read_once(chunks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    from bigfs.store.formats.parts import open_here

    monkeypatch.setattr(cube, "_PIECE_BYTES", 5_000)
    values = np.random.default_rng(0).normal(size=(8, 40, 30))
    array = _Counted(values, chunks)
    source = CubeSource("X", partial(open_here, array), None, 0)
    rows = np.concatenate(list(source.iter_blocks(64)))
    np.testing.assert_array_equal(rows, values.reshape(8, -1).T)
    assert array.count.max() == 1


def test_a_scene_from_end_to_end(tmp_path: Path) -> None:
    values = scene()
    values[2, 3, 1] = -9999
    classes = (np.arange(Y * X).reshape(Y, X) % 3).astype(np.int16)
    clouds = np.zeros((Y, X), dtype=bool)
    clouds[:, 0] = True
    group = zarr.open_group(str(tmp_path / "z.zarr"), mode="w")
    group.create_array("cube", data=values, dimension_names=("y", "x", "band"))
    group.create_array("band", data=np.array(WAVELENGTHS), dimension_names=("band",))
    group.create_array("clouds", data=clouds.astype(np.uint8), dimension_names=("y", "x"))
    np.save(tmp_path / "classes.npy", classes)
    uri = str(tmp_path / "z.zarr")
    config = {
        "run": str(tmp_path / "run"),
        "input": {
            "uri": f"{uri}::cube", "features": "band", "no_data": -9999, "missing": "drop_rows",
            "rows": {"column": f"{uri}::clouds", "keep": 0},
        },
        "method": "max_variance",
        "n_features_to_select": 2,
        "evaluate": {"labels": str(tmp_path / "classes.npy")},
    }  # fmt: skip
    kept = ~clouds
    kept[2, 3] = False
    plan = plan_pipeline(load_config(config, []))
    assert plan.unknown and plan.shape is not None and plan.shape.n_features == BANDS
    result = bigfs.run(config)
    assert result.n_samples == kept.sum() and result.feature_names == NAMES
    np.testing.assert_allclose(result.scores, values[kept].var(axis=0), rtol=1e-6)
    labels = np.arange(result.n_samples)
    image = bigfs.to_grid(result, labels)
    stored = Scratch(tmp_path / "shared").put("labels", labels)
    np.testing.assert_array_equal(bigfs.to_grid(result, stored), image)
    assert image.shape == (Y, X) and (image[~kept] == -1).all()
    np.testing.assert_array_equal(image[kept], labels)
    result.export(tmp_path / "out.npy")
    bands = bigfs.to_grid(tmp_path / "run", np.load(tmp_path / "out.npy"))
    np.testing.assert_array_equal(bands[kept], values[kept][:, result.selected])
    assert np.isnan(bands[~kept]).all()
    again = bigfs.run(str(tmp_path / "run" / "config.yaml"))
    assert again.stages["data"]["attempt"] == result.stages["data"]["attempt"]
    with pytest.raises(InputError, match="a number for each of the 55 rows of .*Got 3 values"):
        bigfs.to_grid(result, [1, 2, 3])
    ingest(values[0], tmp_path / "flat.zarr")
    with pytest.raises(InputError, match="not an array of several dimensions"):
        bigfs.to_grid(tmp_path / "flat.zarr", [1])


@pytest.mark.parametrize("kind", ["zarr", "NetCDF", "HDF5", "Dataset"])
def test_an_image_of_labels_may_have_its_dimensions_in_another_order(
    kind: str, tmp_path: Path
) -> None:
    classes = np.arange(Y * X).reshape(Y, X) % 5
    X_of, place = scene(), str(tmp_path / "a.zarr")
    data: Any = None
    if kind == "zarr":
        group = zarr.open_group(place, mode="w")
        group.create_array("X", data=X_of, dimension_names=("y", "x", "band"))
        group.create_array("classes", data=classes.T.copy(), dimension_names=("x", "y"))
    elif kind == "HDF5":
        h5py = pytest.importorskip("h5py", reason="the extra bigfs[anndata] is not installed")
        place = str(tmp_path / "a.h5")
        with h5py.File(place, "w") as file:
            for name, values, dims in (("X", X_of, "yxb"), ("classes", classes.T, "xy")):
                file[name] = values
                for i, dim in enumerate(dims):
                    file[name].dims[i].label = dim
    else:
        xr = pytest.importorskip("xarray", reason="the extra bigfs[xarray] is not installed")
        data = xr.Dataset({"X": (("y", "x", "band"), X_of), "classes": (("x", "y"), classes.T)})
        place = str(tmp_path / "a.nc")
        if kind == "NetCDF":
            pytest.importorskip("h5netcdf", reason="h5netcdf is not installed")
            data.to_netcdf(place, engine="h5netcdf")
    if kind == "Dataset":
        source = open_matrix(data, variable="X", features="band")
        labels: Any = LabelValues("classes", labels_in(data, source, "classes"))
    else:
        labels = f"{place}::classes"
    np.testing.assert_array_equal(load_labels(labels, Y * X), classes.ravel())


@pytest.mark.parametrize("kind", ["NetCDF", "HDF5", "Dataset", "npy"])
def test_a_picture_of_quality_chooses_rows(kind: str, tmp_path: Path) -> None:
    """It may be of floats, or whole numbers of which some are missing."""
    quality, data = np.linspace(0, 1, Y * X).reshape(Y, X), scene()
    xr = pytest.importorskip("xarray", reason="the extra bigfs[xarray] is not installed")
    arrays = {"q": (("y", "x"), quality), "X": (("y", "x", "band"), data)}
    flags = {"q": ("yx", np.where(quality < 0.5, 0, 9).astype(np.int8))}
    cube: Any = xr.Dataset(arrays)
    column = str(tmp_path / "q.npy") if kind == "npy" else "q"
    if kind == "npy":
        np.save(column, quality)
    if kind == "HDF5":
        h5py = pytest.importorskip("h5py", reason="the extra bigfs[anndata] is not installed")
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for name, (dims, values) in (flags | {"X": ("yxb", data)}).items():
                file[name] = values
                for i, dim in enumerate(dims):
                    file[name].dims[i].label = dim
            file["q"].attrs["_FillValue"] = np.int8(0)
        cube = tmp_path / "a.h5"
    elif kind != "Dataset":
        pytest.importorskip("h5netcdf", reason="h5netcdf is not installed")
        cube.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
        cube = tmp_path / "a.nc"
    source = open_matrix(cube, variable="X", features=2, rows={"column": column, "at_least": 0.5})
    rows = np.concatenate(list(source.iter_blocks(100)))
    np.testing.assert_array_equal(rows, data[quality >= 0.5])


@pytest.mark.full
def test_a_selector_takes_a_cube_and_keeps_its_bands(tmp_path: Path) -> None:
    source = open_matrix(zarr_array(tmp_path), features="band")
    selector = bigfs.GFSKMeans(2, n_clusters=2).fit(source)
    expected = bigfs.GFSKMeans(2, n_clusters=2).fit(scene().reshape(-1, BANDS))
    np.testing.assert_array_equal(selector.scores_, expected.scores_)
    labels = np.asarray(selector.labels_)
    np.testing.assert_array_equal(bigfs.to_grid(source, labels), labels.reshape(Y, X))
    lazy = data_array(("band", "y", "x")).chunk({"band": 2})
    fitted = bigfs.MaxVariance(2).fit(open_matrix(lazy, features="band"))
    chosen = fitted.transform(lazy)
    assert chosen.dims == ("band", "y", "x") and chosen.chunks is not None
    np.testing.assert_array_equal(chosen.values, lazy.values[fitted.get_support()])


def test_bands_are_taken_by_name_from_an_array_that_has_more_of_them(
    tmp_path: Path,
) -> None:
    array = data_array()
    left_out = str(array.coords["band"].values[0])
    fitted = bigfs.MaxVariance(2).fit(bigfs.open_matrix(array, columns=[f"!{left_out}"]))
    names = fitted.feature_names_in_[fitted.get_support(indices=True)].tolist()
    chosen = fitted.transform(array)
    assert [str(name) for name in chosen.coords["band"].values] == names
    np.testing.assert_array_equal(chosen.values, array.sel(band=chosen.coords["band"]).values)
    with pytest.raises(InputError, match="no dimensions of .* has the names of the selected"):
        fitted.transform(array.isel(band=[0]))
    array.coords["band"].attrs["units"] = "nm"
    axes = bigfs.plot(bigfs.MaxVariance(2).fit(array), array).spectrum()
    assert axes.get_xlabel() == "band, nm"


def test_the_last_dimension_holds_the_features_if_it_is_called_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    array = data_array()
    fitted = bigfs.MaxVariance(2).fit(array)
    assert caplog.messages == ["X: the features are along 'band'; the other dimensions are rows."]
    named = bigfs.MaxVariance(2).fit(bigfs.open_matrix(array, features="band"))
    np.testing.assert_array_equal(fitted.ranking_, named.ranking_)
    assert list(fitted.feature_names_in_) == NAMES
    for other in (array.rename(band="z"), data_array(("band", "y", "x"))):
        with pytest.raises(InputError, match=r"fit\(bigfs.open_matrix\(X, features='(z|band)'\)\)"):
            bigfs.MaxVariance(2).fit(other)


def test_packed_numbers_and_missing_values_of_netcdf(tmp_path: Path) -> None:
    pytest.importorskip("h5netcdf", reason="the extra bigfs[xarray] is not installed")
    h5py = pytest.importorskip("h5py", reason="the extra bigfs[anndata] is not installed")
    array = data_array().round(2)
    array[1, 2, 3] = np.nan
    encoding = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -999}
    array.to_netcdf(tmp_path / "a.nc", engine="h5netcdf", encoding={"radiance": encoding})
    expected = array.values.reshape(-1, BANDS)
    source = open_matrix(tmp_path / "a.nc", features="band")
    np.testing.assert_allclose(np.concatenate(list(source.iter_blocks(10))), expected, atol=1e-6)
    (tmp_path / "a.nc").rename(tmp_path / "a.h5")
    source = open_matrix(f"{tmp_path / 'a.h5'}::radiance", features="band")
    np.testing.assert_allclose(np.concatenate(list(source.iter_blocks(10))), expected, atol=1e-6)
    assert source.feature_names == NAMES
    assert source.grid == {"dims": ["y", "x"], "shape": [Y, X], "axis": "band"}
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["radiance"].dtype == np.int16


def test_what_is_no_netcdf_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("h5netcdf", reason="the extra bigfs[xarray] is not installed")
    netcdf((7, 9, 5), ("y", "x", "band"))(tmp_path)
    place = next(tmp_path.glob("*.nc"))
    content = place.read_bytes()
    for damaged in (b"no NetCDF", content[: len(content) // 2], content[:8]):
        place.write_bytes(damaged)
        with pytest.raises(InputError, match="as an HDF5 file|is damaged") as caught:
            open_matrix(place, features="band")
        assert "\n" not in str(caught.value) and str(caught.value).endswith(". Write it again.")


def test_dimensions_of_features_may_lie_apart(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray", reason="the extra bigfs[xarray] is not installed")
    place = zarr_array(tmp_path)
    values = np.moveaxis(scene(), -1, 0)
    array = xr.DataArray(values, dims=("band", "y", "x"))
    expected = values.transpose(1, 0, 2).reshape(7, 45)
    for given in (place, array):
        source = open_matrix(given, features=["band", "x"])
        assert source.grid == {"dims": ["y"], "shape": [7]}
        np.testing.assert_array_equal(np.concatenate(list(source.iter_blocks(3))), expected)


def test_what_is_wrong_is_one_line_with_a_cure(tmp_path: Path) -> None:
    place = zarr_array(tmp_path)
    with pytest.raises(
        InputError, match="its dimensions are band: 5, y: 7, x: 9. Name the feature dim"
    ):
        open_matrix(place)
    with pytest.raises(InputError, match="has no dimension 'bands': its dimensions are"):
        open_matrix(place, features="bands")
    (tmp_path / "X.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(InputError, match="X.csv does not support features"):
        open_matrix(tmp_path / "X.csv", features=1)
    uri = hdf5(tmp_path)
    with pytest.raises(InputError, match="has no array 'nosuch'. It has scans"):
        open_matrix(uri.replace("/scans/r", "nosuch"), features=2)
    with pytest.raises(InputError, match="names an array, but variable = 'b' names another"):
        open_matrix(uri, variable="b", features=2)
    with pytest.raises(ConfigError, match="names the array '/scans/r', and variable names one too"):
        config = {"uri": uri, "variable": "b"}
        load_config({"run": "r", "input": config, "n_features_to_select": 1}, [])
    assert any("scans/r: 7 x 9 x 5 float32" in line for line in describe(str(tmp_path / "a.h5")))
    matlab(tmp_path)
    assert any("cube: 7 x 9 x 5 single" in line for line in describe(str(tmp_path / "a.mat")))


def test_matrices_of_hdf5_and_matlab_need_no_setting(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="the extra bigfs[anndata] is not installed")
    values = np.random.default_rng(0).normal(size=(20, 3))
    with h5py.File(tmp_path / "X.h5", "w") as file:
        file["data"] = values
        file["y"] = np.arange(20)
    source = open_matrix(tmp_path / "X.h5")
    np.testing.assert_array_equal(next(source.iter_blocks(99)), values)
    with h5py.File(tmp_path / "X.mat", "w", userblock_size=512) as file:
        file["fea"], file["gnd"] = values.T, np.arange(20.0)[None]
    with open(tmp_path / "X.mat", "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file".ljust(128))
    source = open_matrix(tmp_path / "X.mat")
    np.testing.assert_array_equal(next(source.iter_blocks(99)), values)


@pytest.mark.parametrize("form", ["npz", "mat"])
def test_an_image_of_classes_beside_a_cube_is_not_taken_for_the_data(
    form: str, tmp_path: Path
) -> None:
    import scipy.io

    parts = {"cube": np.random.default_rng(0).random((6, 5, 12)), "gt": np.eye(6)[:, :5]}
    path = tmp_path / f"scene.{form}"
    (np.savez(path, **parts) if form == "npz" else scipy.io.savemat(path, parts))
    with pytest.raises(InputError, match="holds 2 matrices .*cube, gt"):
        open_matrix(path)
    assert open_matrix(path, features=2).n_features == 12
    assert open_matrix(path, variable="gt").n_features == 5


def test_dimensions_of_labels_may_be_in_any_order(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray", reason="the extra bigfs[xarray] is not installed")
    classes = np.add.outer(np.arange(7) // 3, np.arange(9) // 4)  # 0 to 4
    values = classes[..., None] * [3.0, -1, 2, 0, 0] + np.random.default_rng(0).normal(
        size=(7, 9, 5)
    )
    xr.DataArray(values, dims=("y", "x", "band"), name="rad").to_netcdf(tmp_path / "d.nc")
    straight = xr.DataArray(classes, dims=("y", "x"), name="cls")
    straight.to_netcdf(tmp_path / "yx.nc")
    straight.transpose("x", "y").to_netcdf(tmp_path / "xy.nc")
    settings = {"method": "ndfs", "n_features_to_select": 2, "report": None,
                "input": {"uri": f"{tmp_path / 'd.nc'}::rad", "features": "band"}}  # fmt: skip
    files = [f"{tmp_path / order}.nc::cls" for order in ("yx", "xy")]
    found = []
    for i, labels in enumerate([*files, straight, straight.transpose("x", "y")]):
        result = bigfs.run({
            **settings, "run": str(tmp_path / f"run{i}"), "evaluate": {"labels": labels},
            "ndfs": {"n_clusters": 5, "max_iter": 5, "init": files[i % 2]},
        })  # fmt: skip
        found.append((result.scores.tolist(), result.evaluation["selected"]))
    assert all(entry == found[0] for entry in found)
    assert found[0][1]["nearest_neighbor_error"] < 0.4
