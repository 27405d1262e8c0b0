"""Configuration of the documentation: ``python -m sphinx docs docs/_build``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import matplotlib

sys.path.insert(0, str(Path(__file__).parents[1]))
matplotlib.use("Agg")

import bigfs  # noqa: E402

project = "bigfs"
author = "bigfs developers"
release = version = bigfs.__version__
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "_build",
    "README.md",
    "**/sg_execution_times.rst",
    "sg_execution_times.rst",
    "gallery/*",
]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
# Links to files of the repository that are no pages stay as they are.
suppress_warnings = ["myst.xref_missing", "config.cache"]
autosummary_generate = True
autodoc_default_options = {"members": True, "inherited-members": False}
numpydoc_show_class_members = False
html_theme = "pydata_sphinx_theme"
html_title = f"bigfs {release}"
html_show_sourcelink = False
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
copyright = "bigfs developers, BSD-3-Clause"
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "show_memory": False,
    "write_computation_times": False,  # a page of it loads scripts from outside
    "download_all_examples": False,
    "abort_on_example_error": True,
    # BIGFS_DOCS_EXAMPLES=0 builds the pages without running the examples.
    "plot_gallery": os.environ.get("BIGFS_DOCS_EXAMPLES", "1") != "0",
}


def keep_text_of_missing(app, doctree, docname):  # type: ignore[no-untyped-def]
    """Replace links from included pages to files of the repository, which are no pages, by text."""
    from docutils import nodes

    for link in list(doctree.findall(nodes.reference)):
        target = link.get("refuri", "") or f"#{link.get('refid', '')}"
        if target.startswith("#") and ("/" in target or "." in target):
            link.replace_self(nodes.inline("", "", *link.children))


def setup(app):  # type: ignore[no-untyped-def]
    """Register the hook above with Sphinx."""
    app.connect("doctree-resolved", keep_text_of_missing)
