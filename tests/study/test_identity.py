"""Identities of runs: records of version 0.2 stay valid, whatever options the library gains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepjepa.study import records as identity
from stepjepa.study.reading import read_study
from stepjepa.study.spec import possible_runs
from stepjepa.study.tree import open_study

EVIDENCE = Path(__file__).resolve().parents[2] / "docs" / "evidence"
# Digests of the data files of the studies, by a part of their paths: train, select, test.
DATA = {
    "path_star": ("d2d2a5dc17450e1f", "536866965a67782e", "6b92fd00d6550db1"),
    "task=a5": ("4dbcbe4ac3b5ed4c", "4bd9e08aee815310", "f5308d5296b2fa8a"),
    "labels_or_jepa_data": ("11d3e4271aeeddaf", "52e508f4b26042bb", "acfce67c9284bb97"),
}


def digest_of(name, split):
    """That of a file which is not there: the problems take a while to generate, and NL-RX is not shipped."""
    (digests,) = [digests for part, digests in DATA.items() if part in name]
    return digests[("train", "select", "test").index(Path(name).stem.removesuffix("_small"))]


@pytest.mark.parametrize(
    ("recipe", "records", "runs"),
    [("planning", "planning/test", 153), ("labels_or_jepa", "labels_or_jepa/full", 10)],
)
def test_records_of_an_earlier_version_are_of_the_study(recipe, records, runs, monkeypatch):
    monkeypatch.setattr(identity, "_data_digest", digest_of)
    name, tree = open_study(recipe)
    study = read_study(tree, name)
    whole = identity.study_identity(study)
    identities = {run.name: identity.run_identity(run, whole) for run in possible_runs(study)}
    lines = [json.loads(line) for line in (EVIDENCE / f"{records}.jsonl").read_text().splitlines()]
    recorded = {line["run"]: line["identity"] for line in lines if line["at"]}
    assert len(recorded) >= runs
    assert recorded == {run: identities[run] for run in recorded}
