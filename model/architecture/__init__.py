"""The shape of a language model, and the files that it is read from.

- ``layer_form``: how layers are built; ``model_config``: a decoder-only transformer of such layers, with sizes;
  ``experts``: those of a Mixture of Experts and of latent attention; ``state_space`` and ``delta_net``: those of
  Mamba-2's mixers and of linear attention; ``vision``: the part that sees images.
- ``model_flops``: floating-point operations that training it takes by definition.
- ``hf``: Hugging Face's ``config.json`` files and the catalogue of models; ``hf_families``, ``hf_gpt_families`` and
  ``hf_hybrid_families`` have what each type of model leaves unsaid, a ``hf_family`` each, ``hf_refused`` those whose
  layers are not known; ``hf_experts`` reads its experts, ``hf_windows`` which layers are local, ``hf_state_space`` what
  each layer of a hybrid is made of, ``hf_vision`` its vision tower, ``hf_reader`` is the typed access to the file.
"""
