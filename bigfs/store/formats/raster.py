"""Raster images (GeoTIFF, ENVI) read by rasterio, with bands as features and pixels as rows."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.threads import ignoring_warnings
from bigfs.store.formats.cube import CubeSource
from bigfs.store.location import Location
from bigfs.store.source import Source, check_no_variable, work_dtype
from bigfs.store.values import check_exact, decoding, installed, refusing

_TIFF = (b"II", b"MM")
_DIMS = ("band", "y", "x")
# Size of GDAL's cache of decoded blocks, in MB. Its default is a share of the machine's memory.
_CACHE_MB = 64
# Bytes of the lines that are written at once.
_LINES_BYTES = 16 * 10**6


@contextmanager
def _open_bands(path: Location, no_data: float | None) -> Iterator[_Picture]:
    """Open an image as an array; the file is opened anew for every read."""
    with opened(path) as file:
        yield _Picture(file, no_data)


class _Picture:
    """Bands of an open image as one array, with scale and offset applied.

    Values that are masked or equal to ``no_data`` are NaN.
    """

    def __init__(self, file: Any, no_data: float | None) -> None:
        self._file, self.shape = file, (file.count, file.height, file.width)
        self._no_data = no_data
        # NumPy has no complex integers; complex numbers of any kind are refused later.
        stored = np.result_type(*("c8" if "complex" in kind else kind for kind in file.dtypes))
        masks = {flag for flags in file.mask_flag_enums for flag in flags}
        scaled = {*file.scales} != {1} or {*file.offsets} != {0}
        # An image of integers is read in its stored type if nothing is missing or scaled. 64 bits
        # are excluded because floats may not hold them.
        self._is_plain = stored.kind in "iu" and stored.itemsize < 8 and no_data is None
        self._is_plain &= not scaled and {flag.name for flag in masks} == {"all_valid"}
        self.dtype = stored if self._is_plain else work_dtype(stored, file.name)
        height, width = file.block_shapes[0]
        bands = file.count if file.interleaving and file.interleaving.name == "pixel" else 1
        self.chunks = (bands, height, width)

    def __getitem__(self, key: tuple[slice, ...]) -> np.ndarray:
        from rasterio.windows import Window

        bands, lines, pixels = key
        window = Window.from_slices(lines, pixels)
        indexes = list(range(bands.start + 1, bands.stop + 1))
        if self._is_plain:
            return np.asarray(self._file.read(indexes, window=window), self.dtype)
        values = self._file.read(indexes, window=window, masked=True)
        if self._no_data is not None:
            values = np.ma.masked_where(values.data == self._no_data, values, copy=False)
        if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
            flat = values.filled(0).reshape(len(indexes), -1).T
            check_exact(flat, self._file.name, 0, [f"band {index}" for index in indexes])
        numbers = np.asarray(values.astype(self.dtype).filled(np.nan))
        for band, place in enumerate(range(bands.start, bands.stop)):
            scale, offset = self._file.scales[place], self._file.offsets[place]
            if (scale, offset) != (1, 0):
                numbers[band] = numbers[band] * scale + offset
        return numbers


@contextmanager
def opened(path: Location) -> Iterator[Any]:
    """Open an image with rasterio.

    Raises
    ------
    InputError
        If it is not such an image, lies in a bucket, or the package rasterio is not installed.
    """
    if not isinstance(path, Path):
        raise InputError(f"{path}: images are only read from a local disk. Copy the file there.")
    with installed(f"{path}: reading images needs rasterio", "'bigfs[geo]'"):
        import rasterio
    fault = rasterio.errors.RasterioError
    with refusing(f"{path} is not a GeoTIFF or ENVI file, or is damaged", fault):
        with path.open("rb") as raw:
            driver = "GTiff" if raw.read(2) in _TIFF else "ENVI"  # other drivers access the network
        with ignoring_warnings(rasterio.errors.NotGeoreferencedWarning):
            opening = rasterio.open(_data_of(path), driver=driver)
        with rasterio.Env(GDAL_CACHEMAX=_CACHE_MB), opening as file:
            yield file


def _data_of(path: Path) -> str:
    """Return the path of the values, which for an ENVI header (.hdr) is that of another file.

    Raises
    ------
    InputError
        If the header may belong to several files.
    """
    if path.suffix.lower() != ".hdr":
        return os.fspath(path)
    known = (".img", ".dat", ".bsq", ".bil", ".bip", ".raw", "")
    files = [name for ending in known if (name := path.with_suffix(ending)).is_file()]
    if len(files) > 1:
        names = ", ".join(name.name for name in files)
        raise InputError(f"{path} may be the header of {names}. Give the file of values itself.")
    return os.fspath(files[0] if files else path)


def open_file(path: Location, variable: str | None, **cube: Any) -> Source:
    """Open an image; ``cube`` has ``features`` and ``no_data`` of a `CubeSource`, if given.

    A pixel that has no data in a band, according to the file, is a missing value in this band.
    """
    check_no_variable(path, variable)
    uri = str(path)
    with opened(path) as file:
        names = _names(file)
        points, crs = file.gcps if file.gcps[0] else ([], file.crs)
        grid = {"crs": crs.to_wkt() if crs else None, "transform": list(file.transform)[:6]}
        if points:  # instead of a transform
            grid["points"] = [[p.row, p.col, p.x, p.y, p.z or 0.0] for p in points]
        place = partial(_open_bands, path.absolute(), cube.pop("no_data", None))
        cube = {"features": "band", **cube}
        of_bands = names if cube["features"] in ("band", 0) else None
        with decoding(uri):
            source = CubeSource(uri, place, _DIMS, **cube, names=of_bands)
    if source.grid is not None and list(source.grid["dims"]) == ["y", "x"]:
        source.grid = {**source.grid, **grid}
    source.held_bytes += _CACHE_MB * 2**20
    return source


def _names(file: Any) -> list[str] | None:
    """Return the wavelengths of the bands, or else their descriptions.

    None is returned if neither is given for every band.
    """
    wavelengths = [file.tags(i).get("wavelength") for i in file.indexes]
    for texts in (wavelengths, list(file.descriptions)):
        if all(texts):
            return [str(text) for text in texts]
    return None


def read_column(path: Location, name: str) -> np.ndarray:
    """Return the only band of an image of classes as labels.

    The labels have the stored type if it holds all values, which are NaN if missing.
    """
    if name:
        raise InputError(
            f"{path} has no column {name!r}: an image of classes, or a mask of rows, is given "
            "alone, as FILE.tif, or FILE:: with another ending."
        )
    with opened(path) as file, decoding(str(path)):
        if file.count != 1:
            raise InputError(f"{path} has {file.count} bands; classes must be a single band.")
        picture = _Picture(file, None)
        _, height, width = picture.shape
        values = picture[slice(0, 1), slice(0, height), slice(0, width)][0]
        stored = np.asarray(values, file.dtypes[0]) if np.isfinite(values).all() else values
        return stored if (stored == values).all() else values


def preview(path: Location) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and type of the only array of an image."""
    with opened(path) as file:
        return [("bands", (file.count, file.height, file.width), str(file.dtypes[0]))]


def write(file: IO[bytes], selected: Any) -> None:
    """Write the selected columns as bands of a GeoTIFF, georeferenced like their source."""
    columns = selected.columns
    n_pixels = math.prod((columns.grid or {}).get("shape", (0,)))
    kept = np.ones(n_pixels, dtype=bool)
    kept[np.asarray(columns.dropped, dtype=np.int64)] = False
    write_map(file, columns.grid, kept, selected.blocks, columns.dtype, selected.names)


def write_map(
    file: IO[bytes], grid: Any, kept: np.ndarray, blocks: Iterable[np.ndarray],
    dtype: np.dtype, names: Sequence[str] = ("",), missing: Any = None,
) -> None:  # fmt: skip
    """Write rows as the pixels of a GeoTIFF, several lines at a time.

    Pixels without a row are missing values.

    Parameters
    ----------
    file : binary file
    grid : mapping or None
        ``grid`` of the source of the rows, with ``crs`` and ``transform``.
    kept : ndarray of shape (n_pixels,), bool
        Mask of the pixels that have a row.
    blocks : iterable of ndarray of shape (n_rows, n_bands)
    dtype : numpy.dtype
    names : sequence of str
        Names of the bands.
    missing : number or None, default=None
        Value that the file declares as missing, for integers. None: no value. Floats use NaN, and
        integers become float64 with NaN if there are pixels without a row.

    Raises
    ------
    InputError
        If the rows are not the pixels of an image.
    """
    if not grid or "transform" not in grid:
        raise InputError("A GeoTIFF can only be written for the pixels of one (.tif, .img).")
    import rasterio
    from rasterio.windows import Window

    height, width = grid["shape"]
    missing = np.nan if dtype.kind == "f" else missing
    if not kept.all() and dtype.kind != "f":
        dtype, missing = np.dtype(np.float64), np.nan
    # Types that GDAL, or some readers of GeoTIFF, do not support.
    wider = {"bool": "uint8", "int8": "int16", "float16": "float32"}
    dtype = np.dtype(wider.get(dtype.name, dtype))
    step = max(1, _LINES_BYTES // (width * len(names) * dtype.itemsize))
    points = [rasterio.control.GroundControlPoint(*point) for point in grid.get("points", ())]
    transform = rasterio.Affine(*grid["transform"])
    on_map = {"crs": grid["crs"], **({"gcps": points} if points else {"transform": transform})}
    with tempfile.NamedTemporaryFile(suffix=".tif") as place:
        with rasterio.Env(GDAL_CACHEMAX=_CACHE_MB), rasterio.open(
            place.name, "w", driver="GTiff", height=height, width=width, count=len(names),
            dtype=dtype, nodata=missing, compress="deflate", BIGTIFF="IF_SAFER", **on_map,
        ) as picture:  # fmt: skip
            for band, name in enumerate(names, 1):
                picture.set_band_description(band, name)
            source, waiting = iter(blocks), np.empty((0, len(names)), dtype)
            for start in range(0, height, step):
                lines = kept[start * width : (start + step) * width]
                needed = int(lines.sum())
                while len(waiting) < needed:
                    waiting = np.concatenate([waiting, next(source).astype(dtype)])
                values = np.full((len(lines), len(names)), 0 if missing is None else missing, dtype)
                values[lines], waiting = waiting[:needed], waiting[needed:]
                bands = values.reshape(-1, width, len(names)).transpose(2, 0, 1)
                picture.write(bands, window=Window(0, start, width, bands.shape[1]))
        shutil.copyfileobj(place, file)
