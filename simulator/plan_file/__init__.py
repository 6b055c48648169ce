"""PLAN.toml: everything that software decides about an iteration, read, checked and frozen.

- ``plan``: the checked object, of ``parts``; ``schema`` has its tables, whose keys are in ``schema_workload``,
  ``schema_surroundings``, ``schema_parallelism`` and ``schema_implementation``, each a ``schema_table``; ``source``
  readable errors by line, ``tables`` fills in defaults, ``names`` finds what names stand for, ``schedule_names`` those
  of schedules.
- What must hold between keys: ``checks``; by feature ``attention``, ``context``, ``deterministic``, ``documents``,
  ``experts``, ``frameworks``, ``images``, ``layers``, ``liger``, ``loss_and_optimizer``, ``lora``, ``muon``,
  ``narrow``, ``pairs``, ``prediction``, ``recomputation``, ``replicas``, ``rollout``, ``stored``, ``tiles``,
  ``training_loop`` with ``trainer_waits``, ``wide_values``, and ``features`` for keys of what is off.
- Tables of their own: ``network``, ``overlap``, ``site``.
- ``assumptions``: what a forecast takes for granted of all of them, ``layer_assumptions`` of layers.
- What plans leave open: ``precisions`` of types, ``stages`` of the split, ``ways_out`` how it may go further;
  ``power``: what the card must take.
- A plan in the words of :mod:`joulecast.model`: ``gpu``, ``implementation``, ``compared`` for the models that its
  loss compares with, and ``placement`` for the links of its groups.
"""
