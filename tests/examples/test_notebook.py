"""examples/first_steps.ipynb: run as a whole, it compares three codecs and draws a figure."""

import base64
import importlib.util
import io
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_steps.ipynb"

if absent := [name for name in ("nbclient", "nbformat", "ipykernel", "matplotlib") if importlib.util.find_spec(name) is None]:
    pytest.skip(f"without {', '.join(absent)}: pip install '.[bench,frameworks]'", allow_module_level=True)


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_it_is_stored_without_outputs() -> None:
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert outputs(notebook) == []


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by the packages that run notebooks
def test_every_cell_runs_and_fewer_bits_send_fewer_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient
    from PIL import Image

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()

    texts = [output.text for output in outputs(notebook) if output.output_type == "stream" and output.name == "stdout"]
    rows = re.findall(r"^(.+?) +loss (\S+)  sent +(\S+) MB$", "".join(texts), re.M)
    assert [name for name, _, _ in rows] == ["float32", "4 bits", "top 5 %"]
    assert all(float(loss) < 2.0 for _, loss, _ in rows)  # the initial loss is ln 10 = 2.30
    dense, *coded = [float(sent) for _, _, sent in rows]
    assert all(sent < dense / 4 for sent in coded)

    [figure] = [output.data["image/png"] for output in outputs(notebook) if "image/png" in output.get("data", {})]
    colors = Image.open(io.BytesIO(base64.b64decode(figure))).convert("RGB").getcolors(1 << 24)
    assert len(colors) > 50
