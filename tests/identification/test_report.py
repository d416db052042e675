"""The report: one file that needs nothing else, with every picture and the verdict in it."""

import base64
import re
from pathlib import Path

from tests.identification.test_identify import cells
from tests.machines import MACHINES
from tests.shell import pkm, refused

PNG = b"\x89PNG"


def test_one_file_with_everything_in_it(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    arguments = ["identify", MACHINES / "6-upru.toml", cells(tmp_path), "--report", target]
    result = pkm(*arguments)
    assert result.code == 0, result.out + result.err
    page = target.read_text(encoding="utf-8")
    pictures = re.findall(r'<img src="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) == 6
    assert all(base64.b64decode(picture).startswith(PNG) for picture in pictures)
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert result.out.splitlines()[-1][:60] in page
    assert "platform_mass_kg" in page
    refused(pkm(*arguments), 2, "nothing is overwritten")
