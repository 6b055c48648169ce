"""Analyse a folder of traces with Holistic Trace Analysis; runs in its environment, prints JSON.

.venv-hta/bin/python tests/support/read_back_hta.py FOLDER
"""

import json
import sys


def main(folder):
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_dir=folder)
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    kernels, _ = analysis.get_gpu_kernel_breakdown(visualize=False)
    found = {
        "temporal": analysis.get_temporal_breakdown(visualize=False).to_dict("records"),
        "overlap": overlap.to_dict("records"),
        "kinds": {row["kernel_type"]: float(row["sum"]) for row in kernels.to_dict("records")},
    }
    print(json.dumps(found, default=float))


main(sys.argv[1])
