"""Choosing by forecast among options of which the board's limit makes some alike."""

import numpy as np

from joulecast.validate.scoring.regret import by_energy, regret

CLOCKS = np.array([1800.0, 1900.0, 1980.0])


def test_of_equal_energies_that_of_the_highest_clock_is_chosen():
    assert np.argmin(by_energy(np.array([1.0, 1.003, 1.1]), CLOCKS, 0.004)) == 1
    assert np.argmin(by_energy(np.array([1.0, 1.005, 1.1]), CLOCKS, 0.004)) == 0


def test_of_equal_clocks_the_least_energy_is_chosen():
    places = by_energy(np.array([1.003, 1.0, 1.001]), np.full(3, 1980.0), 0.004)
    assert places.tolist() == [2.0, 0.0, 1.0]
    assert by_energy(np.array([1.003, 1.0, 1.001]), np.full(3, np.nan), 0.004).tolist() == places.tolist()


def test_what_is_not_forecast_has_no_place_and_what_was_not_measured_is_passed_over():
    places = by_energy(np.array([np.nan, 1.0, 1.1]), CLOCKS, 0.004)
    assert np.isnan(places[0]) and places[1:].tolist() == [0.0, 1.0]
    assert regret(places, np.array([0.5, np.nan, 0.9])) == 0.0
