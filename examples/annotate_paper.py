# /// script
# requires-python = ">=3.10"
# dependencies = ["stepjepa[docs]"]
# [tool.uv.sources]
# stepjepa = { path = ".." }
# ///
"""Writes the notes of docs/paper.md into a PDF of the LLM-JEPA paper that you have, each beside the place it is about.

    python examples/annotate_paper.py paper.pdf annotated.pdf
    python examples/annotate_paper.py paper.pdf annotated.pdf --notes my_notes.md --overwrite

Needs pypdf (pip install 'stepjepa[docs]'). A page with notes becomes wider, and the notes stand in the new margin as
annotations, which every viewer shows and which can be moved or deleted; the paper's own words are not touched. The notes
are the sections of a Markdown file that begin with a comment saying where they belong:

    ## LLM-JEPA loss, Equation 2
    <!-- find: The LLM-JEPA objective; LLM-JEPA objective | v1: 3 -->

The phrases between semicolons are looked for in turn, first as a numbered heading, then anywhere; spaces, line breaks and
capitals do not matter. Tables are numbered as in version 2 of the paper: in a file that calls itself version 1, numbered
places are not looked for, and a note whose place is not found goes to the page behind "v1".
"""

import argparse
import io
import re
import textwrap
import unicodedata
from pathlib import Path
from typing import NamedTuple

from stepjepa.errors import ConfigError, library
from stepjepa.utils.files import write_whole

NOTES = Path(__file__).resolve().parents[1] / "docs" / "paper.md"
MARGIN, SIZE, LEADING, GAP = 230, 6.5, 8.0, 6  # in points: the margin, letters, from line to line, around a note
COLUMNS = 66  # Helvetica letters of SIZE that fit into MARGIN
VERSION = re.compile(r"arxiv:2509\.14252v(\d)")


class Note(NamedTuple):
    """A section of the notes: its heading, the phrases that mark its place, the page of version 1 (from 1), its lines."""

    title: str
    phrases: tuple[str, ...]
    v1_page: int | None
    lines: tuple[str, ...]


class Page(NamedTuple):
    """A page's text without spaces and in small letters, and for each character its height above the page's lower edge."""

    text: str
    heights: list[float]


def read_notes(path):
    """The sections of a Markdown file that say where they belong, without the Markdown."""
    notes = []
    for section in re.split(r"^## ", Path(path).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        place = re.search(r"<!-- find: (.+?)(?: \| v1: (\d+))? -->", section)
        if place is None:
            continue
        body = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", section[place.end() :])  # links: their words
        items = [" ".join(item.split()) for item in re.split(r"^- ", re.sub(r"\*\*|`", "", body), flags=re.MULTILINE)]
        wrapped = [textwrap.wrap(item, COLUMNS, subsequent_indent="  ") for item in items if item]
        title = section.splitlines()[0].strip()
        phrases = tuple(phrase.strip() for phrase in place[1].split(";"))
        notes.append(Note(title, phrases, int(place[2]) if place[2] else None, tuple(sum(wrapped, [title]))))
    if not notes:
        raise ConfigError(f"{path}: no section has a place; write <!-- find: some words --> below its heading")
    return notes


def plain(text):
    """Letters that can be compared: ligatures taken apart, no spaces, small."""
    return re.sub(r"\s", "", unicodedata.normalize("NFKC", text)).lower()


def read_page(page):
    """A pypdf page's text, with heights."""
    text, heights = [], []

    def visit(piece, cm, tm, *_):
        kept = plain(piece)
        text.append(kept)
        heights.extend([tm[4] * cm[1] + tm[5] * cm[3] + cm[5]] * len(kept))

    page.extract_text(visitor_text=visit)
    return Page("".join(text), heights)


def find(note, pages, version):
    """(page from 0, height) of a note's place, None if there is none. The height is None for a whole page."""
    for phrase in note.phrases:
        if version == 1 and re.match(r"(Table|Figure|Equation) \d", phrase):
            continue
        words = re.escape(plain(phrase))
        for pattern in (r"(?<![\d.])[\da-z](?:\.\d)*\.?" + words, words):
            for number, page in enumerate(pages):
                match = re.search(pattern, page.text)
                if match:
                    return number, page.heights[match.start()]
    if version == 1 and note.v1_page and note.v1_page <= len(pages):
        return note.v1_page - 1, None
    return None


def stack(wanted, heights, bottom, top):
    """Upper edges of notes of these `heights`, in order, without overlap, each at or below its wanted edge if it can be."""
    edges, limit = [], top
    for want, height in zip(wanted, heights, strict=True):
        limit = min(limit, want)
        edges.append(limit)
        limit -= height + GAP
    floor = bottom  # where the last ones reach below the page, they push the others up
    for i in reversed(range(len(edges))):
        edges[i] = max(edges[i], floor + heights[i])
        floor = edges[i] + GAP
    return edges


def annotation(pypdf, writer, note, left, upper):
    """A FreeText annotation with an appearance of its own, since not every viewer draws one from the text alone."""
    g = pypdf.generic
    width, height = MARGIN - 2 * GAP, note_height(note)
    shown = [line.encode("cp1252", "replace").replace(b"\\", b"\\\\") for line in note.lines]
    shown = [line.replace(b"(", b"\\(").replace(b")", b"\\)") for line in shown]
    frame = f"1 0.98 0.88 rg 0.6 0.5 0.2 RG 0.5 w 0.25 0.25 {width - 0.5} {height - 0.5} re B 0 g "
    begin = f"BT /F {SIZE} Tf {LEADING} TL 4 {height - 4} Td "
    look = g.StreamObject()
    look.set_data((frame + begin).encode() + b" ".join(b"T* (" + line + b") Tj" for line in shown) + b" ET")
    font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica", "/Encoding": "/WinAnsiEncoding"}
    font = g.DictionaryObject({g.NameObject(key): g.NameObject(value) for key, value in font.items()})
    fonts = g.DictionaryObject({g.NameObject("/F"): font})
    look[g.NameObject("/Type")] = g.NameObject("/XObject")
    look[g.NameObject("/Subtype")] = g.NameObject("/Form")
    look[g.NameObject("/BBox")] = g.RectangleObject((0, 0, width, height))
    look[g.NameObject("/Resources")] = g.DictionaryObject({g.NameObject("/Font"): fonts})
    box = (left + GAP, upper - height, left + GAP + width, upper)
    made = pypdf.annotations.FreeText(text="\n".join(note.lines), rect=box, font="Helvetica", font_size=f"{SIZE}pt")
    made[g.NameObject("/T")] = g.TextStringObject(note.title)
    made[g.NameObject("/AP")] = g.DictionaryObject({g.NameObject("/N"): writer._add_object(look)})
    made.flags = 4  # printed as well
    return made


def note_height(note):
    return len(note.lines) * LEADING + 8


def read_paper(pypdf, source):
    """A writer that holds the file's pages, none of them turned.

    Raises:
        ConfigError: the file is no PDF, or is locked.
    """
    try:
        reader = pypdf.PdfReader(io.BytesIO(source.read_bytes()))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ConfigError(f"{source} is locked with a password; unlock it and give the unlocked file")
        writer = pypdf.PdfWriter(clone_from=reader)
        for page in writer.pages:
            page.transfer_rotation_to_content()
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}") from None
    except pypdf.errors.PyPdfError as error:
        raise ConfigError(f"{source} cannot be read as a PDF: {error}") from None
    return writer


def annotate(source, notes):
    """The annotated PDF as bytes, the page of each note (from 1; None: no place), and the paper's version where it says it.

    Raises:
        ConfigError: the file cannot be read, or holds none of the places.
    """
    pypdf = library("pypdf", "docs")
    library("pypdf.annotations", "docs")
    writer = read_paper(pypdf, source)
    pages = [read_page(page) for page in writer.pages]
    stamp = VERSION.search("".join(page.text for page in pages[:1]))
    version = int(stamp[1]) if stamp else None
    places = {note: find(note, pages, version) for note in notes}
    if not any(places.values()):
        raise ConfigError(f"{source} holds none of the places of the notes; is it the LLM-JEPA paper, and has it text?")
    for number, page in enumerate(writer.pages):
        right, bottom, top = (float(edge) for edge in (page.mediabox.right, page.mediabox.bottom, page.mediabox.top))
        here = [(note, place[1]) for note, place in places.items() if place and place[0] == number]
        here = sorted(((note, top if height is None else height) for note, height in here), key=lambda one: -one[1])
        for shape in (page.mediabox, page.cropbox) if here else ():
            shape.upper_right = (right + MARGIN, float(shape.top))
        heights = [note_height(note) for note, _ in here]
        uppers = stack([height + SIZE for _, height in here], heights, bottom + GAP, top - GAP)
        for upper, (note, _) in zip(uppers, here, strict=True):
            writer.add_annotation(number, annotation(pypdf, writer, note, right, upper))
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue(), {note: place and place[0] + 1 for note, place in places.items()}, version


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: error: {message}\n")  # one line, without the usage
    parser.add_argument("paper", type=Path, help="the paper as a PDF, for example arxiv.org/pdf/2509.14252v2")
    parser.add_argument("annotated", type=Path, help="the PDF to write")
    parser.add_argument("--notes", type=Path, default=NOTES, help="a Markdown file of notes (default: docs/paper.md)")
    parser.add_argument("--overwrite", action="store_true", help="write over an existing file, never over the paper")
    args = parser.parse_args(argv)
    try:
        for path in (args.paper, args.notes):
            if not path.is_file():
                raise ConfigError(f"{path}: there is no such file")
        if args.annotated.exists() and (args.annotated.is_dir() or args.annotated.samefile(args.paper)):
            raise ConfigError(f"{args.annotated} is a folder or the paper itself; name another file")
        if args.annotated.exists() and not args.overwrite:
            raise ConfigError(f"{args.annotated} exists; name another file or add --overwrite")
        data, places, version = annotate(args.paper, read_notes(args.notes))
        write_whole(args.annotated, [data])
    except (ConfigError, UnicodeDecodeError) as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{args.annotated} cannot be written: {error.strerror}")
    for note, page in places.items():
        print(f"page {page:>2}   {note.title}" if page else f"no place  {note.title}: {'; '.join(note.phrases)}")
    if version == 1:
        print("This is version 1 of the paper; the notes number tables and figures as version 2 does.")
    print(f"{sum(map(bool, places.values()))} of {len(places)} notes in {args.annotated}")
    return 0


if __name__ == "__main__":
    main()
