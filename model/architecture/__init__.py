"""The shape of a language model, and the files that it is read from.

- ``model_config``: a decoder-only transformer's shape; ``experts``: that of a Mixture of Experts and latent attention.
- ``model_flops``: floating-point operations that training it takes by definition.
- ``hf``: Hugging Face's ``config.json`` files and the catalogue of models; ``hf_families`` has what each type of model
  leaves unsaid, ``hf_experts`` its experts, ``hf_windows`` which layers are local, ``hf_reader`` the typed access to
  the file.
"""
