"""A training step: a stage's kernels, and what is around its layers.

- ``step``: layers, embedding and head as the framework launches them; ``pipeline_stage``: what a pipeline adds;
  ``vision_stack``: a vision tower in front of the first layer.
- ``parameters``: the tensors of a stage, each ``matrix`` among them; ``optimizer``: the step over them;
  ``other_optimizers``: those beside AdamW, of ``bitsandbytes_steps``, ``adafactor`` and ``sgd``; ``muon``: that over
  matrices, which ``layer_wise`` shares out whole.
- ``data_parallel``: reduction of gradients over replicas; ``sharded_units``: FSDP's parameters, unit by unit,
  ``sharded_gaps``: in parts where layers communicate too.
- ``nanobatches``: a micro-batch in parts, the communication of one beside the computation of another.
- ``generation``: completions by an inference engine, for methods that learn from a model's own.
- ``factors``: how kernels fare in long runs on clusters, beside the same kernels alone.
"""
