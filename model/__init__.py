"""Physics: pure functions of arrays and frozen dataclasses, and the catalogue of what they are asked about.

Each part imports only from those above it:

- ``hashing``: hashes of what much is looked up by.
- ``hardware``: the numbers of one GPU with source and uncertainty, found or derived.
- ``cluster``: links between GPUs, collectives over them, and what surrounds GPUs in a node and a site.
- ``kernels``: what single kernels compute, and their work on one GPU.
- ``power``: what they draw at a clock, and the clock at which a board settles.
- ``uncertainty``: how sure a forecast is.
- ``forecasts``, ``repeated_work``: kernels back to back at the clock at which a board settles, and their intervals.
- ``predict``: all of this together, for single kernels.
- ``architecture``: the shape of a language model.
- ``framework``: the options of a framework, and the launches that they decide.
- ``transformer``: the launches of a layer and of both ends of the stack, in eager PyTorch and in Megatron-Core.
- ``training``: a step: parameters, optimizer, data parallelism.
- ``memory``: whether it fits.

``catalogue_data`` has the catalogue's files.
"""
