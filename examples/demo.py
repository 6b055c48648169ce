"""Forecast one training iteration of Llama-3.1-8B on four H200s and print it beside the measured one.

The same forecast on its own: joulecast predict examples/llama-3.1-8b-4xh200.toml
"""

import json
from pathlib import Path

import joulecast as jc
from joulecast.command_line.output import number, print_table

HERE = Path(__file__).resolve().parent
PLAN = HERE / "llama-3.1-8b-4xh200.toml"
MEASURED = HERE / "llama-3.1-8b-4xh200.measured.json"


def main() -> None:
    """Forecast first; the measurement is read only afterwards."""
    forecast = jc.predict(PLAN)
    measurement = json.loads(MEASURED.read_text(encoding="utf-8"))
    row = measurement["row"]
    clocks = row["sm_clock_mhz_per_gpu"]
    lines = [
        ("time of an iteration [s]", forecast.time_s, row["time_s"], (forecast.time_s_p05, forecast.time_s_p95)),
        ("energy, all GPUs [J]", forecast.energy_j, row["energy_j"], (forecast.energy_j_p05, forecast.energy_j_p95)),
        (
            "power, all GPUs [W]",
            forecast.power_w,
            sum(row["power_w_per_gpu"]),
            (forecast.power_w_p05, forecast.power_w_p95),
        ),
        ("SM clock, median [MHz]", forecast.clock_mhz, sum(clocks) / len(clocks), None),
    ]
    print_table(
        [
            {
                "": label,
                "forecast": predicted,
                "5-95 %": f"{number(interval[0])} to {number(interval[1])}" if interval else "",
                "measured": measured,
                "error [%]": round(100 * (predicted / measured - 1), 2),
            }
            for label, predicted, measured, interval in lines
        ],
        title=f"{PLAN.name}, one iteration",
    )
    print(f"Measured: {measurement['source']}")


main()
