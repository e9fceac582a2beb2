"""Every mutant still fits the code."""

from mutants.run import load


def test_every_mutant_fits_the_code():
    mutants = load()
    assert [mutant.name[:3] for mutant in mutants] == [f"{number:02}_" for number in range(1, 61)]
    assert {mutant.name: problem for mutant in mutants if (problem := mutant.problem())} == {}
