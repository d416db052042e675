"""How Sphinx builds the site: `make docs`. The pages are Markdown; what the code knows better is put into them by
`generate.py`, not here.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from controller import __version__ as release

project = "pkm-controller"
copyright = "the authors of pkm-controller, Apache-2.0"  # noqa: A001  Sphinx's word
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"pkm-controller {release}"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
exclude_patterns = ["_static"]
myst_heading_anchors = 4  # a link may name any heading that a page shows on its right
myst_links_external_new_tab = False
nitpicky = True
linkcheck_ignore = [r"https?://"]  # inside links only: the build does not depend on other people's servers
