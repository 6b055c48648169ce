"""What a plan may choose from.

- ``options``: the ways to run one kind of instruction: time, energy and knobs.
- ``pareto``: which of them no other one beats in time and cost; ``time_limit``: which plans last until a time at most.
- ``overlap_space``: how communication overlaps computation; ``tile_space``: tiles.
- ``front_space``: all of it for a front: clocks, overlap and tiles; ``ranges``: how a SPACE.toml writes many values.
"""
