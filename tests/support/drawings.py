"""Reading what `stepjepa inspect` draws."""


def cells(out, name):
    """The tokens of a section, lines joined."""
    lines = out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"{name} "))
    start = next(line for line in lines if line.startswith("segment")).index("tokens")
    found = [lines[first][start:]]
    for line in lines[first + 1 :]:
        if not line.startswith(" "):
            break
        found.append(line[start:])
    return "|".join(found).replace("\u2502", "").replace("|", "")
