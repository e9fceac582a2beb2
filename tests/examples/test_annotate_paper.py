"""examples/annotate_paper.py on PDFs that are drawn here, with the paper's headings as short phrases."""

import pytest
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

pypdf = pytest.importorskip("pypdf", reason="needs the package pypdf")

V2 = [
    ["arXiv:2509.14252v2 [cs.CL]", "ABSTRACT", "In text: the LLM-JEPA objective is said early, and Table 2 is named."],
    ["2 Two Views", "2.2  THE  LLM-JEPA", "OBJECTIVE", "The Predictor."],
    ["Table 12: four families", "Table 2: from random init"],
    ["5 Conclusion"],
]


@pytest.fixture
def paper(tmp_path):
    """A PDF of 6 x 8 inches with the lines of each page one inch apart, the first one seven inches above the edge."""
    with PdfPages(tmp_path / "paper.pdf") as pdf:
        for lines in V2:
            figure = Figure(figsize=(6, 8))
            for i, line in enumerate(lines):
                figure.text(0.05, (7 - i) / 8, line, fontsize=10)
            pdf.savefig(figure)
    return tmp_path / "paper.pdf"


def notes_of(path):
    """Title -> (page from 1, rectangle) of the annotations of a PDF."""
    found = {}
    for number, page in enumerate(pypdf.PdfReader(path).pages, 1):
        for item in page.get("/Annots", []):
            item = item.get_object()
            found[item["/T"]] = (number, [float(x) for x in item["/Rect"]])
    return found


def test_notes_stand_next_to_what_they_are_about(script, paper, tmp_path, capsys):
    before = paper.read_bytes()
    assert script.main([str(paper), str(tmp_path / "out.pdf")]) == 0
    assert paper.read_bytes() == before
    notes = notes_of(tmp_path / "out.pdf")
    assert {title: note[0] for title, note in notes.items()} == {
        "Abstract": 1,
        "Two views": 2,
        "LLM-JEPA loss, Equation 2": 2,  # the numbered heading over two lines, not the words in the text of page 1
        "Predictor": 2,
        "From random weights, Table 2": 3,  # the caption, not the mention
        "Model families, Table 12": 3,
        "Conclusion and limits": 4,
    }
    for title, inches in {"Abstract": 6, "Two views": 7, "Conclusion and limits": 7}.items():
        left, bottom, right, top = notes[title][1]
        assert 6 * 72 < left < right < 6 * 72 + script.MARGIN and 0 < bottom < top < 8 * 72
        assert 72 * inches <= top <= 72 * inches + 20, title
    first, second, third = sorted((note[1] for note in notes.values() if note[0] == 2), key=lambda box: -box[3])
    assert first[1] > second[3] and second[1] > third[3], "they overlap"
    assert f"7 of {len(script.read_notes(script.NOTES))} notes in " in capsys.readouterr().out
    original, annotated = pypdf.PdfReader(paper), pypdf.PdfReader(tmp_path / "out.pdf")
    for old, new in zip(original.pages, annotated.pages, strict=True):
        assert old.extract_text() == new.extract_text() and old.mediabox.height == new.mediabox.height
        assert new.mediabox.width == old.mediabox.width + script.MARGIN
    for words, message in ([tmp_path / "out.pdf"], "add --overwrite"), ([paper, "--overwrite"], "or the paper itself"):
        with pytest.raises(SystemExit) as stopped:
            script.main([str(paper), *map(str, words)])
        error = capsys.readouterr().err
        assert stopped.value.code == 2 and error.count("\n") == 1 and message in error
    assert paper.read_bytes() == before
