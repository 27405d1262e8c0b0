"""GeoTIFF and ENVI: what is selected or labelled goes back on the map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import bigfs
from bigfs.cli import cli
from bigfs.core.errors import InputError
from bigfs.store.source import open_matrix

rasterio = pytest.importorskip("rasterio", reason="the extra bigfs[geo] is not installed")
CRS = "EPSG:32633"
MAP = rasterio.Affine(30, 0, 5e5, 0, -20, 5e6)


def main(arguments: list[str]) -> int:
    """Run a command, and return its exit code."""
    return CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code


def scene(folder: Path, name: str = "scene.tif", driver: str = "GTiff", **options: Any) -> Path:
    """Write 4 bands of 9 lines and 7 pixels, of which two have no data."""
    bands = np.random.default_rng(0).normal(size=(4, 9, 7)).astype(np.float32)
    bands[1, 2, 3:5] = -9999
    with rasterio.open(
        folder / name, "w", driver=driver, count=4, height=9, width=7, dtype="float32", crs=CRS,
        transform=MAP, nodata=-9999, **options,
    ) as file:  # fmt: skip
        file.write(bands)
        for band, text in enumerate(("blue", "green", "red", "infrared"), 1):
            file.set_band_description(band, text)
    return folder / name


def check_map(path: Path) -> None:
    """Check that a picture lies where the scene does."""
    with rasterio.open(path) as file:
        assert file.crs.to_epsg() == 32633
        assert tuple(file.transform)[:6] == (30, 0, 5e5, 0, -20, 5e6)
        assert (file.height, file.width) == (9, 7)


def test_labels_and_selected_bands_go_back_on_the_map(tmp_path: Path) -> None:
    path = scene(tmp_path)
    pipeline = tmp_path / "p.yaml"
    pipeline.write_text(
        f"run: {tmp_path}/run\ninput: {{uri: {path}, missing: drop_rows}}\n"
        "method: max_variance\nn_features_to_select: 2\n"
    )
    assert main(["run", str(pipeline)]) == 0
    run = bigfs.open_result(tmp_path / "run")
    places = np.arange(61)
    grid = bigfs.to_grid(run, places, dest=tmp_path / "labels.tif")
    assert grid.shape == (9, 7)
    assert (grid[2, 3:5] == -1).all()
    check_map(tmp_path / "labels.tif")
    with rasterio.open(tmp_path / "labels.tif") as file:
        np.testing.assert_array_equal(file.read(1), grid)
        assert (file.dtypes[0], file.nodata) == ("int32", -1)
    for i, values in enumerate((places + 2**31, places % 2 == 0, places.astype(np.float16))):
        grid = bigfs.to_grid(run, values, dest=tmp_path / f"{i}.tif")
        with rasterio.open(tmp_path / f"{i}.tif") as file:
            np.testing.assert_array_equal(file.read(1), grid)
    for mask in (np.ones(61, bool), np.ones(70, bool)):
        with pytest.raises(InputError, match="row_mask must have 63 rows"):
            bigfs.to_grid(run, places, row_mask=mask)
    for values in (None, "x"):
        with pytest.raises(InputError, match="values must hold a number for each"):
            bigfs.to_grid(run, values)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "selected.tif")]) == 0
    check_map(tmp_path / "selected.tif")
    with rasterio.open(tmp_path / "selected.tif") as file, rasterio.open(path) as whole:
        names = list(file.descriptions)
        assert len(names) == 2
        for band, name in enumerate(names, 1):
            original = whole.read(whole.descriptions.index(name) + 1)
            original[2, 3:5] = np.nan
            np.testing.assert_array_equal(file.read(band), original)


def test_a_class_map_is_read_as_labels_and_chooses_rows(tmp_path: Path) -> None:
    from bigfs.store.labels import load_labels

    classes = np.arange(63).reshape(9, 7) % 3
    with rasterio.open(
        tmp_path / "y.tif",
        "w",
        driver="GTiff",
        count=1,
        height=9,
        width=7,
        dtype="uint8",
        transform=MAP,
    ) as file:
        file.write(classes.astype(np.uint8), 1)
    np.testing.assert_array_equal(load_labels(str(tmp_path / "y.tif"), 63), classes.ravel())
    X = np.random.default_rng(0).normal(size=(9, 7, 3))
    np.save(tmp_path / "X.npy", X)
    rows = {"column": str(tmp_path / "y.tif"), "keep": 1}
    source = open_matrix(tmp_path / "X.npy", features=2, rows=rows)
    np.testing.assert_array_equal(np.concatenate(list(source.iter_blocks(9))), X[classes == 1])


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tif").write_bytes(b"II*\0" + bytes(99))
    (tmp_path / "b.img").write_bytes(bytes(99))
    for name in ("a.tif", "b.img"):
        with pytest.raises(InputError, match="not a GeoTIFF or ENVI file, or is damaged"):
            open_matrix(tmp_path / name)
    with pytest.raises(InputError, match=r"written for the pixels of one \(.tif, .img\)"):
        np.save(tmp_path / "X.npy", np.ones((3, 4, 2)))
        source = open_matrix(tmp_path / "X.npy", features=2)
        bigfs.to_grid(source, np.arange(12), dest=tmp_path / "labels.tif")


def test_a_cut_picture_ends_in_words(tmp_path: Path) -> None:
    path = scene(tmp_path)
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(InputError):
        list(open_matrix(path).iter_blocks(99))


def test_bands_have_their_scales_and_offsets_and_missing_values(tmp_path: Path) -> None:
    stored = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    with rasterio.open(
        tmp_path / "X.tif", "w", driver="GTiff", count=2, height=3, width=4, dtype="int16",
        nodata=3, transform=MAP,
    ) as file:  # fmt: skip
        file.write(stored)
        file.scales, file.offsets = (0.5, 1), (100, 0)
    expected = np.where(np.isin(stored, (3, 15)), np.nan, stored)
    expected[0] = expected[0] * 0.5 + 100
    source = open_matrix(tmp_path / "X.tif", no_data=15)
    np.testing.assert_array_equal(next(source.iter_blocks(99)), expected.reshape(2, -1).T)
    assert source.dtype == np.float32
    by_line = open_matrix(tmp_path / "X.tif", features=["band", "y"], no_data=15)
    rows = expected.transpose(2, 0, 1).reshape(4, -1)
    np.testing.assert_array_equal(next(by_line.iter_blocks(99)), rows)


@pytest.mark.parametrize("kind", ["uint8", "int16", "int32"])
def test_whole_numbers_and_control_points_are_exported_as_they_are(
    kind: str, tmp_path: Path
) -> None:
    points = [(0, 0, 10.0, 50.0), (0, 7, 11.0, 50.5), (9, 0, 10.2, 49.0)]
    stored = np.random.default_rng(0).integers(100, size=(3, 9, 7)).astype(kind)
    with rasterio.open(
        tmp_path / "X.tif", "w", driver="GTiff", count=3, height=9, width=7, dtype=kind,
        gcps=[rasterio.control.GroundControlPoint(*point) for point in points], crs="EPSG:4326",
    ) as file:  # fmt: skip
        file.write(stored)
    settings = {"run": str(tmp_path / "run"), "method": "max_variance", "n_features_to_select": 2}
    result = bigfs.run({**settings, "input": {"uri": str(tmp_path / "X.tif")}})
    with rasterio.open(result.export(tmp_path / "out.tif")) as file:
        assert file.dtypes == (kind, kind)
        np.testing.assert_array_equal(file.read(), stored[result.selected])
        placed, crs = file.gcps
        assert [(p.row, p.col, p.x, p.y) for p in placed] == points and crs.to_epsg() == 4326
    assert np.load(result.export(tmp_path / "out.npy")).dtype == kind


def test_complex_bands_are_refused_as_such(tmp_path: Path) -> None:
    with rasterio.open(
        tmp_path / "X.tif", "w", driver="GTiff", count=1, height=3, width=4, dtype="complex_int16",
        transform=MAP,
    ):  # fmt: skip
        pass
    with pytest.raises(InputError, match="real numbers"):
        open_matrix(tmp_path / "X.tif")


def test_a_header_of_several_files_is_refused(tmp_path: Path) -> None:
    scene(tmp_path, "s.dat", "ENVI")
    expected = next(open_matrix(tmp_path / "s.hdr").iter_blocks(99))
    (tmp_path / "s.img").write_bytes(bytes(4 * 9 * 7 * 4))
    with pytest.raises(InputError, match=r"s.hdr may be the header of s.img, s.dat. Give the file"):
        open_matrix(tmp_path / "s.hdr")
    np.testing.assert_array_equal(next(open_matrix(tmp_path / "s.dat").iter_blocks(99)), expected)


def _map(path: Path, values: np.ndarray, **options: Any) -> str:
    """Write a map of one band, with a scale and a value for no data where they are given."""
    scale = options.pop("scale", None)
    with rasterio.open(
        path, "w", driver="GTiff", count=1, height=len(values), width=values.shape[1],
        dtype=values.dtype, transform=MAP, **options,
    ) as file:  # fmt: skip
        file.write(values, 1)
        if scale is not None:
            file.scales = (scale,)
    return str(path)


def test_maps_of_labels_and_masks_have_the_shape_of_the_pixels(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(9, 7, 3))
    np.save(tmp_path / "X.npy", X)
    classes = (np.arange(63) % 3).astype(np.uint8)
    turned = _map(tmp_path / "turned.tif", classes.reshape(7, 9))
    settings = {
        "run": str(tmp_path / "run"), "method": "max_variance", "n_features_to_select": 1,
        "input": {"uri": str(tmp_path / "X.npy"), "features": 2}, "report": None,
    }  # fmt: skip
    with pytest.raises(InputError, match=r"shape \(7, 9\), but the rows are pixels of .* 9 x .* 7"):
        bigfs.run({**settings, "evaluate": {"labels": turned}})
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match=r"shape \(7, 9\), but the rows are pixels"):
        list(open_matrix(tmp_path / "X.npy", features=2, rows={"column": turned, "keep": 1})
             .iter_blocks(9))  # fmt: skip
    result = bigfs.run(
        settings | {"evaluate": {"labels": _map(tmp_path / "f.tif", classes.reshape(9, 7) / 2)}}
    )
    assert result.evaluation["n_clusters"] == 3


def test_maps_have_their_scale_and_their_missing_values(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(9, 7, 3))
    np.save(tmp_path / "X.npy", X)
    quality = np.arange(63, dtype=np.int16).reshape(9, 7)
    quality[0, :3] = -9999
    place = _map(tmp_path / "q.tif", quality, nodata=-9999, scale=0.1)
    source = open_matrix(tmp_path / "X.npy", features=2, rows={"column": place, "at_most": 3.05})
    expected = X[(quality > 0) & (quality * 0.1 <= 3.05)]
    np.testing.assert_array_equal(np.concatenate(list(source.iter_blocks(9))), expected)
    labels = _map(tmp_path / "y.tif", (np.arange(63).reshape(9, 7) % 4).astype(np.uint8), nodata=0)
    settings = {
        "run": str(tmp_path / "run"), "method": "max_variance", "n_features_to_select": 1,
        "input": {"uri": str(tmp_path / "X.npy"), "features": 2}, "evaluate": {"labels": labels},
    }  # fmt: skip
    with pytest.raises(InputError, match="label of row 0 is missing"):
        bigfs.run(settings)
