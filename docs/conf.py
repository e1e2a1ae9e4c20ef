"""Sphinx's configuration. `make docs` builds the site into build/docs/site; everything it shows is local."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
os.environ["COLUMNS"] = "88"  # the width that commands in the tutorials print for
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # the notebook kernel's debugger warns of it otherwise

import local_files

import isolaw

project = "isolaw"
author = "the isolaw developers"
release = version = isolaw.__version__
html_show_copyright = False

extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc", "api", "cli", "flags", "local_files"]
exclude_patterns = ["_ext", "gpu", "README.md"]
highlight_language = "text"
default_role = "py:obj"
show_warning_types = True

myst_enable_extensions = ["deflist", "fieldlist"]
myst_heading_anchors = 4

nb_execution_mode = "force"  # the output is of this version of isolaw
nb_execution_timeout = 900
nb_execution_raise_on_error = nb_execution_show_tb = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # these would come from a network

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # numpydoc's tables describe the parameters
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_theme = "pydata_sphinx_theme"
html_title = f"isolaw {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
# The reports that examples/pages.sh made beside the site, if it did; docs/index.md links them.
html_extra_path = [str(page) for page in local_files.reports()]
html_copy_source = html_show_sourcelink = False
html_show_search_summary = True
html_sidebars = {"index": []}
html_theme_options = {
    "show_prev_next": True,
    "navigation_with_keys": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 5,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["sphinx-version"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
