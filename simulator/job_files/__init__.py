"""What other tools' training jobs are configured with, as plans; nothing of a job is ever run.

Read in this order:

1. ``convert`` finds the kind of a file or command, has it read and checks what comes of it. A reader takes what the
   user says beside the job (``asked``) and gives a ``draft``: every key of the plan with its source, and what no key
   says. ``plan_text`` writes it.
2. What readers share. Of options: ``flags`` (as argparse has them) and ``launcher`` (how many GPUs are started). Of
   tables: ``settings_file`` (key by key), ``yaml_tables`` (YAML with its lines), ``command_settings`` (options as
   such tables) and ``named_files`` (what a job names, near its own file). Of the plan: ``cluster`` (GPUs),
   ``hub_names`` (a model named as on Hugging Face's hub), ``model_shape`` (one whose sizes are given),
   ``pytorch_attention`` (whose kernels PyTorch chooses), ``kept_gathered`` (FSDP's parameters), ``optimizers``,
   ``micro_batches``, ``rollouts`` (engines that generate) and ``told`` (what several readers say).
3. Readers of one tool, smallest first: ``deepspeed`` (JSON); ``torchtune`` and ``litgpt`` (YAML); ``torchtitan``
   (TOML) with ``torchtitan_run``; ``trainer`` (Hugging Face's trainers), which ``trainer_jobs`` finds the settings
   for, with ``processes`` (how many a command starts), in ``trainer_dialects`` of tools built on it, with
   ``accelerate`` (how they are split), ``adapters`` (LoRA), ``images`` (vision towers), ``preferences`` (losses on
   pairs), ``completions`` (GRPO), ``supervised`` (TRL's on texts), ``trainer_kernels`` and ``trainer_liger`` (what
   they run) and ``trainer_names`` (what is told or refused); ``megatron`` with ``megatron_model``,
   ``megatron_parallelism``, ``megatron_run``, ``megatron_optimizer``, ``megatron_names`` (flags that no key stands
   for) and ``megatron_yaml``; ``nemo`` (NeMo and Megatron-Bridge as Megatron's flags) with ``nemo_names``;
   ``verl`` with ``verl_engine`` (what trains), ``verl_sft`` and ``verl_names``; ``openrlhf`` with
   ``openrlhf_rollouts`` and ``openrlhf_names``; ``automodel`` (NeMo AutoModel) with ``automodel_run``,
   ``automodel_kernels`` and ``automodel_names``.
4. Launch scripts, from the bottom up: ``shell_tokens``, ``shell_syntax`` (a tree), ``shell_values``,
   ``shell_conditions`` and ``shell_loops`` (what words, conditions and loops come to), ``shell_slurm`` (what Slurm
   sets), ``shell_sources`` (scripts that a script reads) and ``shell``, which says what commands are started; and
   ``kubernetes``, which makes scripts of manifests.
"""
