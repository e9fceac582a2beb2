"""What came of a study that was carried out (`stepjepa.study.run.run_study`)."""

from stepjepa.study import results
from stepjepa.study.records import RunRecord, record_of
from stepjepa.study.run import StudyRun


def records_of(carried: StudyRun) -> list[RunRecord]:
    """The record of every run, in the study's order."""
    return [record_of(item, carried.state) for item in carried.items]


def missing_lines(carried: StudyRun) -> list[str]:
    """A line for every run without a result."""
    return results.missing_lines(carried.study, carried.state, carried.items)
