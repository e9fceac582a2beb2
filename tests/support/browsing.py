"""A small row for the page's tests in a browser, and moving about in the page."""

import numpy as np

from support.models import Views, paired

# Prompt q; step 1 is a b, step 2 is c d, step 3 is e f; g ends the turn. K = 2: the branches are 8-9 and 12-13, the targets
# 10-11 (c d) and 14-15 (e f).
WORDS = "q a b c d e f g".split()
EXAMPLE = paired(np.arange(8), ((1, 8),), [Views(2, 3, 5), Views(4, 5, 7)], predictors=2)


def words_of(index):
    return WORDS[index]


def settled(page):
    """Two frames on: pointer events are taken once a frame."""
    page.evaluate("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")


def hover(page, token):
    page.hover(f'[data-token="{token}"]')
    page.wait_for_function(f"state.current === {token}")


def barriers(page):
    """What axe-core, which the page has been given, finds serious: impact, rule, element, what to do."""
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (rule["impact"], rule["id"], rule["nodes"][0]["target"], rule["nodes"][0]["failureSummary"])
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
    ]
