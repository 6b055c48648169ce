"""What a framework decides, and how its kernels are told apart, listed and tiled.

- ``implementation``: the options that decide what is launched; ``narrow``: those of linear layers in FP8 and FP4;
  ``lora``: of adapters beside frozen ones; ``muon``: of an optimizer of matrices; ``wide_values``: fp32, and TF32.
- ``launches``: operators on streams in program order; ``launch_shares``: equal shares of them; ``placed``: over the
  links of their groups.
- ``deterministic``: what PyTorch's deterministic algorithms launch besides.
- ``layer_shard``: what one rank has of a layer.
- ``packing``: documents in sequences.
- ``vocabulary``: the rows of Megatron's table of tokens.
- ``tiling``: explicit tiles by the operators' names; ``tile_limits``: whether a GPU can launch them.
"""
