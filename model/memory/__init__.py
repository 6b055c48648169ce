"""Memory of a GPU during training.

- ``footprint``: what is held, when it is highest, and whether it fits, on a ``pipeline_rank``; ``moments`` for what
  comes and goes; ``allocator`` for what PyTorch reserves beyond.
- ``activations``: bytes kept between forward and backward; ``layer_kept``: of one layer, ``layer_transients``: what its
  backward holds for the moment; ``recomputation``: parts computed again instead;
  ``modules_kept``: layers of transformers and torchtitan; ``lora_kept``: of adapters beside frozen weights;
  ``loss_kept``: what losses on pairs of sequences take, logits in tiles, and a forward that keeps no layer;
  ``liger_kept``: of Liger's head and loss; ``vision_kept``: of vision towers.
- ``states``: parameters, gradients and moments, and how they are split over data-parallel ranks.
- ``workspaces``: what libraries and Megatron hold beside these.
"""
